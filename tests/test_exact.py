"""The oracles against each other: enumeration, quadrature and exact draws."""

import math

import pytest
import torch

from grbm import GRBM
from grbm.evaluate import exact
from tests.helpers import assert_standard, exact_chains, mean_z, random_model, z_scores

PLANE = [(1, 1, 0), (1, 6, 1), (2, 3, 2), (2, 8, 3)]


@pytest.mark.parametrize(("N", "M", "seed"), PLANE)
@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_enumeration_and_quadrature_agree(N, M, seed, strength):
    model = random_model(N, M, seed, strength=strength)
    grid = exact.quadrature(model)
    assert grid.log_z == pytest.approx(exact.log_z(model), abs=1e-6)
    moments = exact.moments(model)
    h = model(grid.points).detach()
    torch.testing.assert_close(grid.mean(grid.points), moments.v, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grid.mean(grid.points**2), moments.v2, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grid.mean(h), moments.h, rtol=1e-6, atol=1e-6)
    vh = torch.einsum("pi,pj->pij", grid.points, h)
    torch.testing.assert_close(grid.mean(vh), moments.vh, rtol=1e-6, atol=1e-6)


def test_log_z_without_coupling_is_known():
    model = GRBM(5, 3, dtype=torch.float64)
    with torch.no_grad():
        model.W.zero_()
        model.b.copy_(torch.tensor([0.5, -1.0, 2.0]))
        model.log_var.copy_(torch.linspace(-1, 1, 5))
    by_hand = 0.5 * (2 * torch.pi * model.var).log().sum() + (1 + model.b.exp()).log().sum()
    assert exact.log_z(model) == pytest.approx(by_hand.item(), abs=1e-12)


def test_units_without_weights_take_no_part_in_enumeration():
    """Of 80 units three are at work: each of the others makes a factor of its own."""
    small = random_model(4, 3, 0)
    model = GRBM(4, 80, dtype=torch.float64)
    at_work = torch.tensor([7, 20, 79])
    with torch.no_grad():
        model.load_state_dict(model.state_dict() | {"mu": small.mu, "log_var": small.log_var})
        model.W.zero_()
        model.W[:, at_work] = small.W
        model.b.copy_(torch.linspace(-3, 3, 80))
        model.b[at_work] = small.b
    idle = torch.ones(80, dtype=bool)
    idle[at_work] = False
    expected = exact.log_z(small) + float((1 + model.b.detach()[idle].exp()).log().sum())
    assert exact.is_enumerable(model)
    assert exact.log_z(model) == pytest.approx(expected, abs=1e-12)
    with torch.no_grad():
        model.W[0] = 1
    assert not exact.is_enumerable(model)
    with pytest.raises(ValueError, match="got 80"):
        exact.log_z(model)


@pytest.mark.parametrize("M", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("scale", [0.1, 10.0, 1e4])
def test_the_sum_over_groups_is_that_over_each_state(M, scale):
    """Of the largest scale terms leave float64, and logarithms are summed."""
    rng = torch.Generator().manual_seed(M)
    factors = scale**0.5 * torch.randn(30, M, generator=rng, dtype=torch.float64)
    linear, pairs = scale * torch.randn(M, generator=rng, dtype=torch.float64), factors.T @ factors
    h = torch.cat(list(exact._states(M, linear)))
    each = h @ linear + 0.5 * ((h @ pairs) * h).sum(1)
    assert exact.log_sum(linear, pairs) == pytest.approx(float(each.logsumexp(0)), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("slack", [735.0, 900.0])
def test_terms_that_leave_float64_are_not_lost(slack):
    """Two equal states lie e^-slack below the largest value of each factor: 735 costs digits, and 900 all of them."""
    linear = torch.tensor([0.3, slack - 1000, -slack - 1000], dtype=torch.float64)
    pairs = torch.zeros(3, 3, dtype=torch.float64)
    pairs[1, 2] = pairs[2, 1] = 2000.0
    assert exact.log_sum(linear, pairs) == pytest.approx(math.log1p(math.exp(0.3)) + math.log(2), abs=1e-12)
    assert math.isnan(exact.log_sum(torch.full((30,), math.nan).double(), torch.zeros(30, 30).double()))


def test_log_z_of_many_units_is_that_of_their_parts():
    """Thirty units on visible units of their own: as the fifteen of each half, whose factors multiply."""
    parts = [random_model(4, 15, seed, strength=3.0) for seed in (1, 2)]
    model = GRBM(8, 30, dtype=torch.float64)
    with torch.no_grad():
        model.W.copy_(torch.block_diag(*(part.W for part in parts)))
        for name in ("b", "mu", "log_var"):
            getattr(model, name).copy_(torch.cat([getattr(part, name) for part in parts]))
    assert exact.is_enumerable(model)
    assert exact.log_z(model) == pytest.approx(sum(exact.log_z(part) for part in parts), abs=1e-9)
    each = torch.cat([exact._log_weights(exact._energy(parts[0]), h) for h in exact._states(15, parts[0].W)])
    by_hand = each.logsumexp(0) + 0.5 * (2 * torch.pi * parts[0].var).log().sum()
    assert exact.log_z(parts[0]) == pytest.approx(float(by_hand.detach()), abs=1e-10)


def test_log_prob_integrates_to_one():
    model = random_model(2, 5, 4)
    grid = exact.quadrature(model, max_spacing=0.1)
    assert float(exact.log_prob(model, grid.points).exp().sum() * grid.cell) == pytest.approx(1, abs=1e-9)


def test_quadrature_finds_modes_that_are_far_apart():
    model = GRBM(2, 2, dtype=torch.float64)
    with torch.no_grad():
        model.W.copy_(torch.tensor([[60.0, 0.0], [0.0, -80.0]]))
        model.b.copy_(torch.tensor([-1800.0, -3200.0]))  # cancels the modes' ½ ‖μ + W h‖² but for nothing
    assert exact.quadrature(model).log_z == pytest.approx(exact.log_z(model), abs=1e-6)


def test_exact_draws_have_the_exact_moments():
    """The moments of v, v², h and v hᵀ over 200,000 draws."""
    model = random_model(3, 6, 5)
    v, h = exact_chains(model, 200_000, seed=0)
    assert_standard(z_scores(v, h, exact.moments(model)))


def test_what_cannot_be_exact_says_so():
    with pytest.raises(ValueError, match="n_hidden <= 36"):
        exact.log_z(GRBM(2, 37))
    with pytest.raises(ValueError, match="n_hidden <= 20"):
        exact.sample(GRBM(2, 21), 1)
    with pytest.raises(ValueError, match="n_visible <= 2"):
        exact.quadrature(GRBM(3, 2))
    model = GRBM(2, 2)
    with torch.no_grad():
        model.log_var.fill_(-30)
    with pytest.raises(ValueError, match="more than max_points"):
        exact.quadrature(model)


@pytest.mark.parametrize(("N", "M", "seed"), [(1, 1, 0), (2, 4, 1), (3, 6, 2)])
def test_the_mixture_is_the_model(N, M, seed):
    """Its density is the enumerated one, and 50,000 draws have the exact moments."""
    model = random_model(N, M, seed)
    mixture = exact.mixture(model)
    v = torch.randn(20, N, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(mixture.log_prob(v), exact.log_prob(model, v))
    assert mixture.means.shape == (2**M, N)
    assert float(mixture.log_weights.logsumexp(0)) == pytest.approx(0, abs=1e-12)
    drawn, truth = mixture.sample(50_000, seed=1), exact.moments(model)
    for x, expected in ((drawn, truth.v), (drawn.square(), truth.v2)):
        assert_standard(mean_z(x, expected), n_cases=2 * 3)  # v and v², of three models
