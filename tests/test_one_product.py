"""`GaussianBernoulliRBM().fit(x)` and `grbm train array --data x.npy` learn the same weights and report the same
nats."""

import shutil
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch

from grbm import GaussianBernoulliRBM, runs
from grbm.core.devices import threads
from grbm.runs.presets import PRESETS
from grbm.runs.training import train

RNG = np.random.default_rng(0)
TABLES = {
    "whitened": np.concatenate([0.3 * RNG.normal(size=(150, 3)) + m for m in ([0, 0, 0], [3, 0, 1])]),
    "contrasts": RNG.standard_t(1.5, size=(400, 3)),
    "full-covariance Gaussian": np.c_[RNG.normal(size=(300, 2)) @ [[1.0, 0.5], [0.0, 2.0]], np.full(300, 7.0)],
    "few rows": RNG.normal(size=(15, 3)),
    "gaps": np.where(RNG.random((300, 3)) < 0.2, np.nan, np.round(RNG.normal(size=(300, 3)) * [1, 5, 9], 4)),
    "standardised": (RNG.random((300, 45)) < 0.3).astype(float),
}


@pytest.fixture
def short(monkeypatch):
    """Learning by default, but for how long."""
    monkeypatch.setattr("grbm.fitting.recipe.UPDATES", {"whiten": 60, "by column": 20})
    monkeypatch.setattr("grbm.fitting.recipe.ROUNDS", 2)


@pytest.mark.usefixtures("short")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TABLES)
def test_the_estimator_and_the_command_line_are_one(tmp_path, name):
    x, path = TABLES[name], tmp_path / "x.csv"
    x = x[~np.isnan(x).all(1)]
    pandas.DataFrame(x).to_csv(path, index=False, header=False)
    config = PRESETS["array"].config
    config = replace(config, data=path, seed=3, dataset=replace(config.dataset, held_out=0.0))
    train(config, tmp_path / "run", asked={}, warn=lambda text: None)
    run, rbm = runs.read(tmp_path / "run"), GaussianBernoulliRBM(random_state=3).fit(x)
    learned, own = run.model.state_dict(), rbm.to_model().state_dict()
    assert learned.keys() == own.keys()
    assert all(torch.equal(learned[k], own[k]) for k in own)
    assert rbm.is_gaussian_ == (not run.model.W.any()) == (name in ("full-covariance Gaussian", "contrasts", "gaps"))
    assert run.frame.is_whitened == (name not in ("few rows", "standardised"))
    assert (run.model.contrasts.n > 1) == (name == "contrasts")
    frame = rbm._frame().tensors()
    assert all(torch.equal(x, frame[k]) for k, x in run.frame.tensors().items())
    if run.frame.reference is not None:  # else log Z is annealed, and the way back begins elsewhere
        assert run.fitted.log_partition().value == rbm.log_partition().value
    x = x[~np.isnan(x).any(1)]
    nats = run.fitted.log_prob(torch.tensor(x), rbm.log_partition().value)
    np.testing.assert_array_equal(nats.numpy(), rbm.score_samples(x))
    looks = [line["nats_validation"] for line in run.metrics if line["nats_validation"] is not None]
    assert looks == rbm.validation_scores_


@pytest.mark.usefixtures("short")
def test_one_gaussian_of_columns_is_kept_too(tmp_path):
    """Its frame has the same numbers as that of the rows learned from, and both are written."""
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(300, 3)))
    asked = {"dataset.standardise": "pixel", "train.validation": 0.1, "train.keep_best": True}
    train(replace(PRESETS["array"].config, data=tmp_path / "x.npy"), tmp_path / "run", asked=asked)
    run = runs.read(tmp_path / "run")
    assert not run.model.W.any()
    assert runs.read(tmp_path / "run", "raw").model.W.any()
    (tmp_path / "run" / "status.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()

    def leave(update, record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run.config, tmp_path / "run", resume=True, on_update=leave)
    left = runs.read(tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
    assert left.frame.tensors().keys() == run.frame.tensors().keys()
    assert all(torch.equal(x, run.frame.tensors()[k]) for k, x in left.frame.tensors().items())


@pytest.mark.usefixtures("short")
@pytest.mark.filterwarnings("ignore")
def test_rows_held_out_by_a_run_are_the_only_difference(tmp_path):
    x = TABLES["whitened"]
    np.save(tmp_path / "x.npy", x)
    train(replace(PRESETS["array"].config, data=tmp_path / "x.npy"), tmp_path / "run", asked={}, warn=lambda text: None)
    run = runs.read(tmp_path / "run")
    rows = run.load_data().numbers[0].numpy()
    assert len(rows) == 270
    own = GaussianBernoulliRBM(random_state=0).fit(x[rows]).to_model()
    assert torch.equal(run.model.W, own.W)


@pytest.mark.usefixtures("short")
def test_small_runs_take_one_thread_whatever_the_number_of_processors(tmp_path):
    """On a busy machine each of their short steps would wait for the second thread."""
    np.save(tmp_path / "x.npy", TABLES["few rows"])
    config, seen = replace(PRESETS["array"].config, data=tmp_path / "x.npy"), []
    with threads(2):
        how = {"asked": {"train.n_updates": 3}, "warn": lambda text: None}
        train(config, tmp_path / "run", on_update=lambda update, record: seen.append(torch.get_num_threads()), **how)
        wide = config.recipe.n_threads(10_000)
        assert (set(seen), wide, torch.get_num_threads()) == ({1}, None, 2)
