"""The model against its definition, term by term, and against autograd."""

import itertools
import re

import pytest
import torch

from grbm import GRBM, Annealed, Base, ParallelTempering, sample
from grbm.core.randomness import generator
from grbm.model import softplus
from tests.helpers import random_model

SIZES = [(1, 1, 0), (2, 3, 1), (4, 5, 2)]


def inputs(model: GRBM, n: int = 7, seed: int = 9):
    rng = generator(seed, "inputs")
    v = 2 * torch.randn(n, model.n_visible, generator=rng, dtype=torch.float64)
    h = (torch.rand(n, model.n_hidden, generator=rng, dtype=torch.float64) < 0.5).double()
    return v.to(model.W.dtype), h.to(model.W.dtype)


def all_hidden(n_hidden: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=n_hidden)), dtype=torch.float64)


@pytest.mark.parametrize(("N", "M", "seed"), SIZES)
def test_energy_is_equation_1_written_out(N, M, seed):
    model = random_model(N, M, seed)
    v, h = inputs(model)
    W, b, mu, var = model.W, model.b, model.mu, model.var
    for c in range(len(v)):
        expected = 0.0
        for i in range(N):
            expected += 0.5 * (v[c, i] - mu[i]) ** 2 / var[i]
            expected -= v[c, i] / var[i] * sum(W[i, j] * h[c, j] for j in range(M))
        expected -= sum(b[j] * h[c, j] for j in range(M))
        torch.testing.assert_close(model.energy(v, h)[c], expected)


@pytest.mark.parametrize(("N", "M", "seed"), SIZES)
def test_free_energy_sums_the_hidden_states_out(N, M, seed):
    model = random_model(N, M, seed)
    v, _ = inputs(model)
    energies = torch.stack([model.energy(v, h.expand(len(v), M)) for h in all_hidden(M)])
    torch.testing.assert_close(model.free_energy(v), -(-energies).logsumexp(0))


@pytest.mark.parametrize(("N", "M", "seed"), SIZES)
def test_conditionals_are_those_of_the_energy(N, M, seed):
    model = random_model(N, M, seed)
    v, h = inputs(model)
    for j in range(M):  # p(h_j = 1 | v) from the energy difference
        on, off = h.clone(), h.clone()
        on[:, j], off[:, j] = 1, 0
        torch.testing.assert_close(model.hidden_logits(v)[:, j], model.energy(v, off) - model.energy(v, on))
    # p(v | h) is Gaussian in v: stationary at its mean, with curvature 1/σ²
    mean = model.visible_mean(h)
    torch.testing.assert_close(model.energy_grad(mean, h), torch.zeros_like(mean))
    shift = torch.randn_like(mean, dtype=torch.float64)
    rise = model.energy(mean + shift, h) - model.energy(mean, h)
    torch.testing.assert_close(rise, 0.5 * (shift**2 / model.var).sum(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("N", "M", "seed"), SIZES)
def test_gradients_in_v_are_autograd(N, M, seed, dtype):
    model = random_model(N, M, seed, dtype=dtype)
    v, h = inputs(model)
    v.requires_grad_()
    assert model.energy(v, h).dtype == dtype
    (by_energy,) = torch.autograd.grad(model.energy(v, h).sum(), v)
    (by_free_energy,) = torch.autograd.grad(model.free_energy(v).sum(), v)
    torch.testing.assert_close(model.energy_grad(v, h), by_energy)
    torch.testing.assert_close(model.free_energy_grad(v), by_free_energy)


def test_all_parameters_receive_gradients():
    model = random_model(3, 4, 0)
    v, h = inputs(model)
    (model.energy(v, h).sum() + model.free_energy(v).sum() + model.visible_mean(h).sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(("N", "M", "seed"), SIZES)
def test_a_tempered_energy_is_the_interpolation_and_a_grbm(N, M, seed):
    model = random_model(N, M, seed)
    energy = model.freeze()
    rng = generator(seed, "base")
    base = Base(torch.randn(N, generator=rng, dtype=torch.float64), torch.rand(N, generator=rng).double() + 0.5)
    betas = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    ladder = energy.temper(betas, base)
    v, h = inputs(model)
    v, h = v.expand(3, *v.shape), h.expand(3, *h.shape)
    e0 = 0.5 * ((v - base.mean) ** 2 / base.var).sum(-1)
    torch.testing.assert_close(ladder.energy(v, h), (1 - betas[:, None]) * e0 + betas[:, None] * energy.energy(v, h))
    states = all_hidden(M)
    summed = torch.stack([ladder.energy(v, s.expand_as(h)) for s in states])
    torch.testing.assert_close(ladder.free_energy(v), -(-summed).logsumexp(0))
    live = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(ladder.energy(live, h).sum(), live)
    torch.testing.assert_close(ladder.energy_grad(v, h), slope)
    for k, beta in enumerate(betas):  # a scalar beta is the same energy without the ladder's axis
        alone = energy.temper(beta, base)
        torch.testing.assert_close(alone.free_energy(v[k]), ladder.free_energy(v)[k])
        torch.testing.assert_close(alone.visible_mean(h[k]), ladder.visible_mean(h)[k])
    expected_log_z = 0.5 * (2 * torch.pi * base.var).log().sum() + M * torch.tensor(2.0).double().log()
    torch.testing.assert_close(base.log_z(M), expected_log_z)


@pytest.mark.parametrize("outer", [Annealed, ParallelTempering])
def test_a_tempered_energy_is_not_tempered_again(outer):
    model = random_model(3, 4, 0)
    with pytest.raises(ValueError, match="tempered"):
        sample(model, outer(sampler=ParallelTempering(n_replicas=2)), n_chains=2, n_steps=3)


def test_a_tempered_energy_may_be_looked_at_without_gradients():
    model = random_model(3, 4, 0)
    base, v = Base(torch.zeros(3).double(), torch.ones(3).double()), torch.randn(5, 3, dtype=torch.float64)
    with torch.inference_mode():
        found = model._live().temper(torch.tensor(0.4), base).free_energy(v)
    known = model.freeze().temper(torch.tensor(0.4), base)
    torch.testing.assert_close(found, known.free_energy(v))


def test_softplus_is_exact_in_float64():
    x = torch.linspace(-60, 60, 999, dtype=torch.float64)
    torch.testing.assert_close(softplus(x), torch.logaddexp(x, torch.zeros_like(x)), rtol=1e-14, atol=1e-16)


def test_parameters_have_the_published_names_and_the_papers_start():
    model = GRBM(400, 300, seed=5)
    assert {k: tuple(p.shape) for k, p in model.named_parameters()} == {
        "W": (400, 300),
        "b": (300,),
        "mu": (400,),
        "log_var": (400,),
    }
    # 120,000 weights: the standard error of their variance 1/700 is 0.4 %, four of them 1.6 %
    assert model.W.var().item() == pytest.approx(1 / 700, rel=0.016)
    assert not model.b.any()
    assert not model.mu.any()
    assert not model.log_var.any()
    assert torch.equal(model.W, GRBM(400, 300, seed=5).W)
    assert not torch.equal(model.W, GRBM(400, 300, seed=6).W)


def test_building_a_model_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    GRBM(3, 3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (-1, 2)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match="must be at least 1"):
        GRBM(*sizes)


def test_a_frozen_energy_does_not_move_with_the_parameters():
    model = random_model(3, 4, 0)
    v, h = inputs(model)
    energy = model.freeze()
    before = energy.energy(v, h), energy.visible_mean(h)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    assert torch.equal(energy.energy(v, h), before[0])
    assert torch.equal(energy.visible_mean(h), before[1])
    assert not energy.W.requires_grad


def test_wrong_shapes_are_named():
    model = GRBM(3, 2)
    with pytest.raises(ValueError, match="3 visible units"):
        model.free_energy(torch.zeros(5, 4))
    with pytest.raises(ValueError, match="2 hidden units"):
        model.energy(torch.zeros(5, 3), torch.zeros(5, 3))


@pytest.mark.parametrize("looking", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("learned", [False, True])
def test_a_look_at_an_energy_takes_no_gradient_from_it(looking, learned):
    """W/σ² is made when first asked for, and that may be where no gradients are taken."""
    model = random_model(3, 4, 1)
    W = model.W.detach().clone().requires_grad_(learned)
    energy = model.freeze()
    energy.W = W
    v, _ = inputs(model)
    with looking():
        energy.hidden_logits(v)
    v.requires_grad_()
    energy.free_energy(v).sum().backward()
    torch.testing.assert_close(v.grad, model.free_energy_grad(v).detach())
    if learned:
        model.free_energy(v).sum().backward()
        torch.testing.assert_close(W.grad, model.W.grad)
        energy.free_energy(v).sum().backward()  # once more: nothing is kept of the first graph
        torch.testing.assert_close(W.grad, 2 * model.W.grad)


def test_a_notebook_shows_sizes_and_variances():
    model = GRBM(3, 2, n_contrasts=4)
    with torch.no_grad():
        model.log_var.copy_(torch.tensor([0.5, 1.0, 2.0]).log())
    text = re.sub("<[^>]+>+", " ", model._repr_html_())
    for name, value in (("Visible units", "3"), ("Hidden units", "2"), ("Parameters", "14"), ("Contrasts", "4")):
        assert re.search(rf"{name}\s+{value}\b", text), text
    assert "0.5 to 2" in text
