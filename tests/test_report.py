"""`grbm evaluate` against likelihoods that are known."""

import math
from dataclasses import replace

import pytest
import torch

from grbm import GRBM, Base
from grbm.config import DatasetConfig, ModelConfig, RunConfig, SamplerConfig, SamplingConfig
from grbm.data import Standardizer
from grbm.data.loading import Dataset
from grbm.evaluate.report import evaluate
from grbm.runs import Run


@pytest.mark.parametrize(("n_hidden", "method"), [(3, "enumeration"), (21, "annealing from both ends")])
def test_the_log_likelihood_is_that_of_the_data_in_their_own_units(tmp_path, n_hidden, method):
    """A Gaussian as a GRBM without coupling, on data that were scaled: its log-density is known in closed form."""
    mean, scale = torch.tensor([100.0, -3.0, 0.2]).double(), torch.tensor([50.0, 0.1, 1.0]).double()
    rows = mean + scale * torch.randn(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = GRBM(3, n_hidden)
    with torch.no_grad():
        model.W.zero_()
        model.b.fill_(0.5)
    base = Base(torch.full((3,), 0.1), torch.full((3,), 1.5))
    sampling = SamplingConfig(SamplerConfig("gibbs"), n_steps=2)
    config = RunConfig(DatasetConfig("array"), ModelConfig(n_hidden), sampling=sampling)
    run = Run(tmp_path, config, model, Standardizer(mean, scale), base, None, "", [])
    scores = evaluate(run, n_samples=50, dataset=Dataset(rows, rows[:0]))
    log_density = -0.5 * ((rows - mean) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)
    assert scores["log_z_method"] == method
    assert scores["log_likelihood_train"] == pytest.approx(float(log_density.sum(1).mean()), abs=0.05)
    assert "log_likelihood_test" not in scores  # there are no held-out rows
    again = evaluate(run._replace(config=replace(config, seed=5)), n_samples=50, dataset=Dataset(rows, rows[:0]))
    assert again == scores
