"""What version 0.1 wrote, before its modules moved, is read, goes on, and scores the same (`tests/data`)."""

import json
import math
import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import grbm
from grbm import cli, runs
from grbm.files import read_tensors
from grbm.runs.config import RunConfig
from grbm.runs.folder import save_status

DATA = Path(__file__).resolve().parent / "data"


@pytest.fixture
def old(tmp_path):
    """A run of 30 updates on the isotropic mixture, with tempered chains, checkpoints, scores and `grbm mixing`."""
    return Path(shutil.copytree(DATA / "run_0.1", tmp_path / "run"))


@pytest.mark.whole
def test_a_run_is_read_and_scores_the_same(old, capsys):
    run = runs.read(old)
    assert (run.status.ended, run.status.update) == ("finished", 30)
    assert run.status.machine.startswith("CPU")
    before = json.loads((old / "evaluation.json").read_text())
    assert cli.main(["evaluate", str(old), "--samples", "100"]) == 0
    after = json.loads((old / "evaluation.json").read_text())
    assert before["model"] == after["model"]
    for name in ("log_z", "log_likelihood_train", "log_likelihood_test", "kl_data_model", "reconstruction_test"):
        assert after[name] == pytest.approx(before[name], abs=1e-5)
    for command in ("report", "figures"):
        assert cli.main([command, str(old)]) == 0
    assert cli.main(["doctor", str(old)]) == 3  # so few updates
    page = (old / "report.html").read_text(encoding="utf-8")
    assert "steps per independent draw (gibbs)" in page  # mixing.json is of these weights
    assert "mixing of gibbs" in page
    capsys.readouterr()


def test_a_run_goes_on_from_its_checkpoint(old, capsys):
    """From update 20, ladder, optimiser and chains included. On another processor a draw may fall otherwise, so weights
    are compared to a twentieth of how far ten updates take them."""
    end, middle = (read_tensors(old / "checkpoints" / f"update-000000{k}" / "state.safetensors") for k in (30, 20))
    shutil.rmtree(old / "checkpoints" / "update-00000030")
    (old / "status.json").unlink()
    assert runs.read(old).status.ended == "running"
    assert cli.main(["resume", str(old), "--no-figures"]) == 0
    assert "from 20 on" in capsys.readouterr().out
    again = read_tensors(old / "checkpoints" / "update-00000030" / "state.safetensors")
    assert again.keys() == end.keys()
    for name in ("model.W", "model.b", "average.W"):
        moved = float((end[name] - middle[name]).norm())
        assert float((again[name] - end[name]).norm()) < moved / 20, name
    assert not torch.equal(end["memory.ladder"], middle["memory.ladder"])
    torch.testing.assert_close(again["memory.ladder"], end["memory.ladder"], atol=0.02, rtol=0)  # other draws since 0.2


@pytest.mark.parametrize(
    ("update", "message", "ended"),
    [
        (30, "", "finished"),
        (12, "interrupted at update 12", "interrupted"),
        (7, "Stopped at update 7: the gradient is no longer a sensible number, worst at ...", "diverged"),
    ],
)
def test_sentences_of_how_training_ended_are_understood(old, update, message, ended, capsys):
    machine = "CPU, 1 thread; PyTorch 2.8"
    (old / "status.json").write_text(json.dumps({"update": update, "message": message, "machine": machine}))
    status = runs.read_status(old)
    assert (status.ended, status.update, str(status), status.machine) == (ended, update, message, machine)
    assert cli.main(["doctor", str(old)]) == 3  # so few updates
    shown = capsys.readouterr()
    assert message in shown.err
    assert ("wrong divergence" in shown.out) == (ended == "diverged")
    assert cli.main(["resume", str(old), "--no-figures"]) == (2 if ended == "diverged" else 0)
    assert (message in capsys.readouterr().err) == (ended == "diverged" or message == "")


def test_where_learning_diverged_is_kept_though_its_numbers_are_infinite(tmp_path):
    divergence = grbm.Divergence("gradient", 7, ("min_var", "learning_rate"), 2, math.inf, math.nan)
    save_status(tmp_path, runs.Status("diverged", 7, "CPU", divergence))
    text = (tmp_path / "status.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = runs.read_status(tmp_path)
    assert again.divergence.remedies == ("min_var", "learning_rate")
    assert math.isnan(again.divergence.chains_v2)
    assert str(again) == str(divergence)
    assert "visible unit 2 (variance inf" in str(again)


def test_an_energy_pickled_before_still_runs():
    """Version 0.1 kept no energy beside a tempered one."""
    energy = grbm.GRBM(3, 4).freeze()
    old = grbm.Energy.__new__(grbm.Energy)
    old.__dict__ |= {k: v for k, v in vars(energy).items() if k not in ("_untempered", "_at")}
    assert torch.equal(grbm.sample(old, grbm.Gibbs(), n_chains=4).v, grbm.sample(energy, grbm.Gibbs(), n_chains=4).v)
    assert old.at("fast") is old.at("fast")


def test_what_an_experiment_was_is_kept_as_it_was_written(old, capsys):
    content = json.loads((old / "config.json").read_text())
    content |= {"about": "Table 1: Gibbs; at scale 0.1", "preset": "table1-gibbs"}
    (old / "config.json").write_text(json.dumps(content))
    config = RunConfig.read(old / "config.json")
    assert config.about.text == "Table 1: Gibbs; at scale 0.1"
    assert cli.main(["doctor", str(old)]) == 3  # so few updates
    assert "Table 1: Gibbs; at scale 0.1" in capsys.readouterr().out
    (tmp := old / "again.json").write_text(config.to_json())
    assert RunConfig.read(tmp) == config
    content["about"] = {"dynamics": "published-program", "scale": 0.1}  # before its versions were told apart
    tmp.write_text(json.dumps(content))
    assert "published program" in RunConfig.read(tmp).about.text


def test_an_estimator_pickled_before_goes_on():
    """Scores of then, exact since there are four components; then one pass more."""
    X = np.random.default_rng(0).normal(size=(100, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of another version of scikit-learn
        rbm = pickle.loads((DATA / "estimator_0.1.pkl").read_bytes())
    assert isinstance(rbm, grbm.GaussianBernoulliRBM)
    assert rbm.score(X) == pytest.approx(-5.510668, abs=1e-5)
    assert rbm.log_partition().converged
    assert rbm.partial_fit(X).score(X) == pytest.approx(-5.402503, abs=5e-3)
