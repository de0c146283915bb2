"""The gradient against autograd of the exact log-likelihood, and its centred form."""

import itertools
import math

import pytest
import torch

from grbm import GRBM
from grbm.evaluate import exact
from grbm.samplers.moments import Moments, MomentSum, centre, gradient
from tests.helpers import exact_chains, exact_gradient, random_model

SIZES = [(1, 2, 0), (3, 4, 1), (5, 3, 2)]


def log_likelihood(model: GRBM, v: torch.Tensor) -> torch.Tensor:
    """Mean exact log-likelihood, by enumeration, differentiable."""
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=model.n_hidden)), dtype=torch.float64)
    mean = model.mu + states @ model.W.T
    log_weight = states @ model.b + 0.5 * ((mean**2 - model.mu**2) / model.var).sum(-1)
    log_z = log_weight.logsumexp(0) + 0.5 * (2 * math.pi * model.var).log().sum()
    return -model.free_energy(v).mean() - log_z


@pytest.mark.parametrize(("N", "M", "seed"), SIZES)
def test_gradient_is_autograd_of_the_exact_log_likelihood(N, M, seed):
    model = random_model(N, M, seed)
    data, _ = exact_chains(random_model(N, M, seed + 10), 50, seed=0)
    log_likelihood(model, data).backward()
    analytic = exact_gradient(model, data)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(analytic[name], parameter.grad, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("N", "M", "seed"), SIZES)
def test_joint_statistics_are_minus_the_energys_derivatives(N, M, seed):
    """Eqs. 14-17: with drawn h the gradient is the difference of mean −∂E/∂θ."""
    model = random_model(N, M, seed)
    pairs = [exact_chains(random_model(N, M, seed + k), 30, seed=k) for k in (20, 21)]
    (model.energy(*pairs[1]).mean() - model.energy(*pairs[0]).mean()).backward()
    analytic = gradient(model.freeze(), Moments.of(*pairs[0]), Moments.of(*pairs[1]))
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(analytic[name], parameter.grad)


def test_streamed_moments_are_the_moments_of_all_states():
    model = random_model(3, 4, 3)
    v, h = exact_chains(model, 60, seed=1)
    total = MomentSum.empty(model.freeze())
    for part in range(6):
        total.add(v[10 * part : 10 * part + 10], h[10 * part : 10 * part + 10])
    for streamed, direct in zip(total.mean(), Moments.of(v, h), strict=True):
        torch.testing.assert_close(streamed, direct)


def test_blocks_add_up_and_asking_twice_changes_nothing():
    model = random_model(3, 4, 3)
    v, h = exact_chains(model, 60, seed=1)
    total = MomentSum.empty(model.freeze(), n_blocks=4)
    total.add(v, h)
    for _ in range(2):
        for summed, direct in zip(total.mean(), Moments.of(v, h), strict=True):
            torch.testing.assert_close(summed, direct)


def flip(model: GRBM, unit: int) -> GRBM:
    """The same distribution with hidden unit ``unit`` called by its opposite."""
    flipped = GRBM(model.n_visible, model.n_hidden, dtype=torch.float64)
    with torch.no_grad():
        for a, b in zip(flipped.parameters(), model.parameters(), strict=True):
            a.copy_(b)
        flipped.mu += model.W[:, unit]
        flipped.W[:, unit] *= -1
        flipped.b[unit] *= -1
        # the flip leaves b as it is where μ's shift enters the logits: Wᵀ(v/σ²) is unchanged
    return flipped


def test_the_centred_step_commutes_with_flips_and_the_plain_one_does_not():
    model = random_model(3, 4, 6)
    data, _ = exact_chains(random_model(3, 4, 7), 40, seed=0)
    other = flip(model, 2)
    torch.testing.assert_close(exact.log_prob(model, data), exact.log_prob(other, data))

    def stepped(m: GRBM, centred: bool) -> GRBM:
        energy = m.freeze()
        positive = Moments.of(data, energy.hidden_logits(data).sigmoid())
        ascent = gradient(energy, positive, exact.moments(m))
        ascent = centre(energy, ascent, positive.v, positive.h) if centred else ascent
        moved = GRBM(3, 4, dtype=torch.float64)
        with torch.no_grad():
            for name, p in m.named_parameters():
                # log σ² keeps its plain gradient, which only W, b and mu's flip leaves alone
                moved.get_parameter(name).copy_(p + (0.1 * ascent[name] if name != "log_var" else 0))
        return moved

    for centred in (True, False):
        here = exact.log_prob(stepped(model, centred), data)
        there = exact.log_prob(stepped(other, centred), data)
        assert torch.allclose(here, there, atol=1e-10) == centred


def test_the_centred_step_commutes_with_shifts_of_the_data():
    """v -> v + c, with b and μ to match, is the same model; a step taken there is the same step."""
    model, shift = random_model(3, 4, 6), torch.tensor([2.0, -1.0, 0.5]).double()
    data, _ = exact_chains(random_model(3, 4, 7), 40, seed=0)
    other = GRBM(3, 4, dtype=torch.float64)
    with torch.no_grad():
        other.load_state_dict(model.state_dict())
        other.mu += shift
        other.b -= model.W.T @ (shift / model.var)
    torch.testing.assert_close(exact.log_prob(model, data), exact.log_prob(other, data + shift))
    after = []
    for m, rows in ((model, data), (other, data + shift)):
        energy = m.freeze()
        positive = Moments.of(rows, energy.hidden_logits(rows).sigmoid())
        step = centre(energy, gradient(energy, positive, exact.moments(m)), positive.v, positive.h)
        with torch.no_grad():
            for name in ("W", "b", "mu"):
                m.get_parameter(name).add_(0.1 * step[name])
        after.append(exact.log_prob(m, rows))
    torch.testing.assert_close(*after)


def test_the_centred_step_climbs():
    model = random_model(3, 4, 8)
    data, _ = exact_chains(random_model(3, 4, 9), 200, seed=0)
    energy = model.freeze()
    positive = Moments.of(data, energy.hidden_logits(data).sigmoid())
    plain = gradient(energy, positive, exact.moments(model))
    step = centre(energy, plain, positive.v, positive.h)
    slope = sum((plain[name] * step[name]).sum() for name in plain)
    assert slope > 0
    before = exact.log_prob(model, data).mean()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += 1e-4 * step[name]
    assert float(exact.log_prob(model, data).mean() - before) == pytest.approx(1e-4 * float(slope), rel=0.05)
