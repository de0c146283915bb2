"""`grbm evaluate` against likelihoods that are known."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

from grbm import GRBM, Base, cli
from grbm.data import Elementwise
from grbm.data.config import DatasetConfig
from grbm.data.frame import Frame
from grbm.data.loading import Dataset
from grbm.data.standardise import standardise
from grbm.evaluate import exact
from grbm.fitting.density import Fitted, bits_per_dimension
from grbm.fitting.recipe import ModelConfig, SamplerConfig
from grbm.report import words
from grbm.report.scores import evaluate
from grbm.runs import Run, Status
from grbm.runs.config import RunConfig, SamplingConfig


@pytest.mark.parametrize(
    ("n_hidden", "coupling", "method"),
    [(3, 1e-6, "enumeration"), (37, 0.0, "enumeration"), (37, 1e-6, "annealing from both ends")],
)
def test_the_log_likelihood_is_that_of_the_data_in_their_own_units(tmp_path, n_hidden, coupling, method):
    """A Gaussian as a GRBM of hardly any coupling, on data that were scaled: its log-density is known."""
    mean, scale = torch.tensor([100.0, -3.0, 0.2]).double(), torch.tensor([50.0, 0.1, 1.0]).double()
    rows = mean + scale * torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = GRBM(3, n_hidden)
    with torch.no_grad():
        model.W.fill_(coupling)
        model.b.fill_(0.5)
    base = Base(torch.full((3,), 0.1), torch.full((3,), 1.5))
    sampling = SamplingConfig(SamplerConfig("gibbs"), n_steps=2)
    config = RunConfig(DatasetConfig("array"), ModelConfig(n_hidden), sampling=sampling)
    fitted = Fitted(Frame(Elementwise.of(mean, scale), base), model)
    run = Run(tmp_path, config, fitted, None, Status("finished"), [], "")
    scores = evaluate(run, n_samples=50, dataset=Dataset(rows, rows[:0]))
    log_density = -0.5 * ((rows - mean) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)
    assert scores["log_z_method"] == method
    assert scores["log_likelihood_train"] == pytest.approx(float(log_density.sum(1).mean()), abs=0.05)
    assert "log_likelihood_test" not in scores  # there are no held-out rows
    again = evaluate(run._replace(config=replace(config, seed=5)), n_samples=50, dataset=Dataset(rows, rows[:0]))
    assert again == scores


def gaussian(mean: torch.Tensor, scale: torch.Tensor) -> GRBM:
    """p(z) = N(mean, scale²), as a GRBM without coupling, whose log Z is known."""
    model = GRBM(len(mean), 2)
    with torch.no_grad():
        model.W.zero_()
        model.mu.copy_(mean)
        model.log_var.copy_(2 * scale.log())
    return model


def test_dequantised_pixels_score_as_the_integral_over_their_noise():
    """E over u of a Gaussian log-density in closed form: the square of the distance grows by the noise's variance."""
    levels, N = 5, 3
    rng = torch.Generator().manual_seed(1)
    pixels = torch.randint(levels, (20_000, N), generator=rng).double() / (levels - 1)
    mean, std = torch.tensor([0.1, -0.2, 0.4]), torch.tensor([0.8, 1.0, 1.3])
    model = gaussian(mean, std)
    scale = Elementwise.of(torch.tensor([0.5, 0.4, 0.6]).double(), torch.tensor([0.35, 0.3, 0.4]).double())
    log_z = exact.log_z(model)
    fitted = Fitted(Frame(scale, Base(torch.zeros(3), torch.ones(3))), model)
    found = fitted.log_likelihood(pixels, log_z, 0.05, levels=levels, seed=3)
    # as integers k = (levels − 1) x, with deviation s and u of variance 1/12
    s = (levels - 1) * scale.scale * std.double()
    centre = (levels - 1) * (scale.mean + scale.scale * mean.double()) + 0.5
    squares = ((levels - 1) * pixels + 0.5 - centre).square() + 1 / 12
    expected = (-0.5 * squares / s.square() - s.log() - 0.5 * math.log(2 * math.pi)).sum(1)
    assert found.n_rows == 20_000
    # the rows are the same, so what is left to chance is u: less than a third of the error over rows
    assert found.mean == pytest.approx(float(expected.mean()), abs=0.01)
    assert found.error == pytest.approx(math.hypot(float(expected.std()) / 20_000**0.5, 0.05), rel=0.02)
    bits = bits_per_dimension(found, N)
    assert bits.mean == pytest.approx(-found.mean / (N * math.log(2)))
    # no density can code uniform pixels in fewer bits than their entropy
    assert bits.mean > math.log2(levels)
    plain = fitted.log_likelihood(pixels, log_z)
    inside = gaussian(mean, std).log_prob(scale(pixels), log_z).double() - scale.scale.log().sum()
    assert plain.mean == pytest.approx(float(inside.detach().mean()), abs=1e-5)
    assert plain.error == pytest.approx(float(inside.std()) / 20_000**0.5, rel=1e-3)


def test_whole_tables_are_scored_chunk_by_chunk(tmp_path, monkeypatch):
    """--log-likelihood: all rows whatever the chunks, errors beside the means, bits for images alone."""
    rows = torch.randint(17, (500, 4), generator=torch.Generator().manual_seed(0)).double() / 16
    scale, base = standardise(rows, "pixel"), Base(torch.zeros(4), torch.ones(4))
    config = RunConfig(DatasetConfig("digits"), ModelConfig(2), sampling=SamplingConfig(SamplerConfig("gibbs"), 2))
    model = gaussian(torch.zeros(4), torch.ones(4))
    run = Run(tmp_path, config, Fitted(Frame(scale, base), model), (1, 2, 2), Status("finished"), [], "")
    images = Dataset(rows, rows[:100], (1, 2, 2), levels=17)
    scores = evaluate(run, n_samples=10, dataset=images, whole=True)
    monkeypatch.setattr("grbm.fitting.density.CHUNK", 64)
    in_chunks = evaluate(run, n_samples=10, dataset=images, whole=True)
    numbers = {name: score for name, score in scores.items() if not isinstance(score, str | list)}
    assert {name: in_chunks[name] for name in numbers} == pytest.approx(numbers, rel=1e-6)
    assert (scores["rows_train"], scores["rows_test"]) == (500, 100)
    assert scores["bits_per_dimension_test"] > math.log2(17)
    assert 0 < scores["bits_per_dimension_train_error"] < 0.1
    numbers = evaluate(run, n_samples=10, dataset=images._replace(levels=None), whole=True)
    assert numbers["log_likelihood_train"] == pytest.approx(scores["log_likelihood_train"])
    assert not any("bits" in name for name in numbers)
    assert "rows_train" not in evaluate(run, n_samples=10, dataset=images)


def test_what_took_longer_is_not_thrown_away(tmp_path):
    """A plain evaluation keeps what --log-likelihood found of the same weights, and only of those."""
    run = str(tmp_path / "run")
    assert cli.main(["train", "digits", "--out", run, "--train.n-updates", "20", "--no-figures"]) == 0
    few = ["--samples", "50", "--ais-steps", "20", "--ais-chains", "10"]
    assert cli.main(["evaluate", run, "--log-likelihood", *few]) == 0
    first = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert cli.main(["evaluate", run, *few, "--seed", "2"]) == 0
    second = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    kept = [name for name in first if name.startswith(("log_likelihood", "bits", "log_z", "rows"))]
    assert len(kept) > 8
    assert all(second[name] == first[name] for name in kept)
    assert second["free_energy_samples"] != first["free_energy_samples"]
    assert cli.main(["evaluate", run, *few, "--weights", "raw"]) == 0
    assert "rows_train" not in json.loads((tmp_path / "run" / "evaluation.json").read_text())


@pytest.mark.parametrize("method", words.METHODS)
def test_only_annealing_is_advised_to_anneal_longer(method):
    """Where log Z has not converged it is said, and --ais-steps where that option is heard."""
    log_z = {"log_z": 1.0, "log_z_error": 0.5, "log_z_method": words.METHODS[method], "log_z_converged": False}
    scores = log_z | {"log_z_verdict": "Not converged.", "log_likelihood_train": -1.0, "log_likelihood_test": -1.0}
    of_file = log_z | {"log_likelihood": -1.0, "log_likelihood_error": 0.1, "rows": 9, "rows_of": "x.csv", "gaps": 0}
    for text in (words.score_table(scores), words.of_rows(of_file), words.likelihoods(scores)):
        said = " ".join(" ".join(text).split())
        assert re.search("NOT converged: do not use|Not converged. Do not use", said)
        assert ("--ais-steps" in said) is (method == "AIS")


@pytest.mark.parametrize("most", [60, 200])
def test_comparisons_with_some_of_the_held_out_rows_say_how_many(tmp_path, monkeypatch, most):
    monkeypatch.setattr("grbm.report.scores.MOST", most)
    rows = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    frame = Frame(Elementwise.of(torch.zeros(2), torch.ones(2)), Base(torch.zeros(2), torch.ones(2)))
    sampling = SamplingConfig(SamplerConfig("gibbs"), n_steps=2)
    config = RunConfig(DatasetConfig("array", standardise="none"), ModelConfig(3), sampling=sampling)
    run = Run(tmp_path, config, Fitted(frame, GRBM(2, 3)), None, Status("finished", 1), [], "")
    scores = evaluate(run, n_samples=10, dataset=Dataset(rows[:200], rows[200:]))
    text = "\n".join(words.score_table(scores))
    assert "Simpler models" in text
    assert ("(60 of them)" in text) == (most == 60)
