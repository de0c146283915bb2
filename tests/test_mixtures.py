"""The 2-D mixtures and their scores, against what is known by hand."""

import math

import pytest
import torch

from grbm import GRBM
from grbm.data import MIXTURES, Mixture
from grbm.evaluate.mixtures import density_score, sample_score
from tests.helpers import assert_standard, share_z, z_bound

GRID_STEP = 0.05


@pytest.mark.parametrize("name", MIXTURES)
def test_the_density_integrates_to_one_and_has_the_papers_moments(name):
    mixture = MIXTURES[name]
    axis = torch.arange(-14, 14, GRID_STEP, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    mass = mixture.log_prob(points).exp() * GRID_STEP**2
    assert float(mass.sum()) == pytest.approx(1, abs=1e-9)
    assert (mass @ points).tolist() == pytest.approx([0, 0.34 * 5 - 0.66 * 5], abs=1e-6)
    stds = torch.ones(3, 2) if name == "isotropic" else torch.tensor([[1.25, 0.5], [1.25, 0.5], [0.5, 1.25]])
    assert torch.equal(mixture.stds, stds.double())


@pytest.mark.parametrize("stratified", [False, True])
def test_samples_follow_the_density(stratified):
    mixture = MIXTURES["anisotropic"]
    v = mixture.sample(100_000, seed=1, stratified=stratified)
    score = sample_score(v, mixture)
    assert_standard(share_z(score.within, 1 - math.exp(-4.5), 100_000), n_cases=2)
    assert score.mode_share == pytest.approx([0.33, 0.33, 0.34], abs=1e-3 if stratified else z_bound(3) * 0.0015)
    assert sample_score(v[:300], mixture).mode_share == pytest.approx([0.33, 0.33, 0.34], abs=z_bound(2 * 3) * 0.027)
    for k in range(3):
        mode = v[mixture.modes(v) == k]
        # 33,000 draws: the standard error of a deviation is 0.4 %
        assert mode.std(0).tolist() == pytest.approx(mixture.stds[k].tolist(), rel=0.016)
    assert torch.equal(v, mixture.sample(100_000, seed=1, stratified=stratified))
    assert mixture.sample(1000, stratified=True).shape == (1000, 2)


def shifted_gaussian(mean: float, var: float) -> GRBM:
    model = GRBM(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.W.zero_()
        model.mu.fill_(mean)
        model.log_var.fill_(math.log(var))
    return model


def test_kl_has_the_closed_form_between_gaussians():
    one = Mixture(torch.ones(1).double(), torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    for mean, var in ((0.0, 1.0), (0.7, 0.5), (-1.0, 3.0)):
        expected = 2 * 0.5 * (1 / var + mean**2 / var - 1 + math.log(var))
        assert density_score(shifted_gaussian(mean, var), one).kl == pytest.approx(expected, abs=1e-6)


def test_data_where_the_model_has_no_density_cost_36_nats():
    far = Mixture(torch.ones(1).double(), torch.full((1, 2), 40.0).double(), torch.ones(1, 2).double())
    assert density_score(shifted_gaussian(0.0, 1.0), far).kl == pytest.approx(36)


def test_mode_mass_is_the_models_own():
    two = Mixture(
        torch.tensor([0.5, 0.5]).double(), torch.tensor([[-6.0, 0], [6, 0]]).double(), torch.ones(2, 2).double()
    )
    model = shifted_gaussian(0.0, 1.0)
    with torch.no_grad():  # h moves v from (−6, 0) to (6, 0), and has three times the mass
        model.mu.copy_(torch.tensor([-6.0, 0.0]))
        model.W.copy_(torch.tensor([[12.0], [0.0]]))
        model.b.fill_(math.log(3))
    score = density_score(model, two)
    assert score.mode_mass == pytest.approx([0.25, 0.75], abs=1e-6)
    assert score.kl == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), abs=1e-6)
