"""Spectral steps against the singular value decomposition, and what learning makes of them."""

from dataclasses import replace

import pytest
import torch

from grbm import GRBM, PCD, FitOptions, Gibbs, TrainState, fit, train_step
from grbm.core.devices import half, threads
from grbm.core.distributed import ALONE
from grbm.core.randomness import generator
from grbm.evaluate import exact
from grbm.learning import spectral
from grbm.learning.descent import pool, set_gradients
from grbm.learning.objectives import positive
from grbm.learning.spectral import N_ITERATIONS, equalise, orthogonalised
from grbm.samplers.moments import Pooled
from tests.helpers import exact_chains, random_model


def with_singular_values(shape: tuple[int, int], values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix with these singular values, and U Vᵀ of it, in float64."""
    g = generator(1)
    U, V = (torch.linalg.qr(torch.randn(n, len(values), generator=g, dtype=torch.float64))[0] for n in shape)
    return (U * values) @ V.T, U @ V.T


@pytest.mark.parametrize("shape", [(64, 256), (256, 128), (784, 100), (192, 512), (384, 500), (784, 512)])
def test_any_number_of_threads_finds_the_same_bits(shape):
    gradient = torch.randn(shape, generator=generator(0))
    found = []
    for n in (1, 2, 3):
        with threads(n):
            found.append(orthogonalised(gradient))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (30, 20), (20, 30), (25, 25)])
@pytest.mark.parametrize("n_iterations", [N_ITERATIONS, 5])
def test_singular_values_become_about_one_and_directions_stay(shape, n_iterations):
    rank = min(shape)
    values = torch.linspace(1.0, 0.5, rank, dtype=torch.float64)
    gradient, wanted = with_singular_values(shape, 1e-6 * values)
    found = orthogonalised(gradient.float(), n_iterations).double()
    assert found.shape == shape
    assert 0.67 < torch.linalg.svdvals(found).min() <= torch.linalg.svdvals(found).max() < 1.21
    assert (found * wanted).sum() / (found.norm() * rank**0.5) > 0.98  # the cosine of the angle between them


def test_an_iteration_is_the_quintic_of_each_singular_value():
    values = torch.tensor([0.9, 0.4, 0.1, 0.01], dtype=torch.float64)
    gradient, _ = with_singular_values((9, 6), values)
    s = values / values.norm()
    for _ in range(2):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    found = torch.linalg.svdvals(orthogonalised(gradient, 2))[: len(values)]
    assert torch.allclose(found.sort()[0], s.sort()[0], rtol=1e-12)


def test_weak_directions_move_up_with_strong_ones_and_none_stays_none():
    gradient, _ = with_singular_values((40, 30), torch.tensor([1.0, 0.02], dtype=torch.float64))
    found = torch.linalg.svdvals(orthogonalised(gradient, 5))
    assert 0.67 < found[1] <= found[0] < 1.21
    assert found[2] < 1e-6  # directions that a gradient lacks are not made up
    assert torch.equal(orthogonalised(torch.zeros(4, 7)), torch.zeros(4, 7))
    assert orthogonalised(torch.full((4, 7), 1e-30)).isfinite().all()  # whose squares are 0


@pytest.mark.parametrize("shape", [(5, 8), (200, 190), (384, 500), (600, 391)])
def test_products_of_the_shorter_side_are_the_iteration(shape):
    gradient = torch.randn(shape, dtype=torch.float64, generator=generator(0))
    step_by_step = orthogonalised(gradient, dtype=torch.float64)  # X is taken along
    assert torch.allclose(orthogonalised(gradient), step_by_step, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_of_half_precision_change_little(dtype):
    """The rest is in the gradient's own dtype, whose entries need not fit: 1e-10 is none of float16's numbers."""
    gradient = 1e-10 * torch.randn(192, 256, generator=generator(0))
    exact_one, found = orthogonalised(gradient), orthogonalised(gradient, dtype=dtype)
    assert found.dtype == torch.float32
    assert 0 < (found - exact_one).norm() / exact_one.norm() < 0.02
    assert torch.allclose(torch.linalg.svdvals(found), torch.linalg.svdvals(exact_one), atol=0.02)


@pytest.mark.parametrize(
    ("precision", "n_hidden", "changed"), [("fast", 192, True), ("fast", 191, False), ("highest", 192, False)]
)
def test_fast_halves_the_operands_of_large_products_where_that_is_faster(precision, n_hidden, changed, monkeypatch):
    monkeypatch.setattr(spectral, "half", lambda device: torch.bfloat16)
    model = GRBM(200, n_hidden, seed=1)
    gradient = torch.randn(200, n_hidden, generator=generator(2))
    model.get_parameter("W").grad = gradient.clone()
    for name in ("b", "mu"):
        model.get_parameter(name).grad = torch.zeros_like(model.get_parameter(name))
    v, h = torch.zeros(200), torch.zeros(n_hidden)
    equalise(model, model.freeze(precision), Pooled(None, 1.0, v, h, 1, v, h, None, None), 0.3, centred=False)
    plain, halved = (0.3 * orthogonalised(gradient, dtype=dtype) for dtype in (None, torch.bfloat16))
    assert torch.equal(model.get_parameter("W").grad, halved if changed else plain)


@pytest.mark.parametrize(("device", "tiles", "dtype"), [
    ("cuda", False, torch.float16), ("cpu", True, torch.bfloat16), ("cpu", False, None), ("meta", True, None),
])  # fmt: skip
def test_half_precision_is_for_gpus_and_matrix_units(device, tiles, dtype, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles, raising=False)
    assert half(torch.device(device)) is dtype


def step_of(centred: bool) -> tuple[GRBM, dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """A machine, its gradients before and after they were made equal, and the data's means of v and h."""
    model = random_model(3, 4, 1)
    energy, rng = model.freeze(), ALONE.blocks(2, 0, "update", 0, device=model.W.device)
    v = exact_chains(random_model(3, 4, 2), 40, seed=0)[0].to(model.W)
    data = positive(energy, v, rng, probabilities=True)
    chains = PCD(Gibbs(), 1, n_chains=20, probabilities=True).negative(energy, v, None, rng)
    pooled = pool(data, chains, ALONE)
    set_gradients(model, energy, pooled, centred=centred)
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    equalise(model, energy, pooled, 0.3, centred=centred)
    after = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return model, before, after, v.mean(0), pooled.mean_h


def test_without_centring_only_the_weights_step_changes():
    _, before, after, _, _ = step_of(centred=False)
    assert torch.equal(after["W"], 0.3 * orthogonalised(before["W"]))
    assert all(torch.equal(before[name], after[name]) for name in ("b", "mu", "log_var"))


def test_centred_biases_follow_the_step_that_the_weights_take():
    """Written with v − λ and h − m the biases have gradients of their own, which no step of W changes."""
    model, before, after, mean_v, mean_h = step_of(centred=True)
    assert torch.equal(after["W"], 0.3 * orthogonalised(before["W"]))
    assert torch.equal(before["log_var"], after["log_var"])
    var = model.var.detach()

    def centred_biases(grads: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return grads["b"] + (mean_v / var) @ grads["W"], grads["mu"] + grads["W"] @ mean_h

    for own, changed in zip(centred_biases(before), centred_biases(after), strict=True):
        assert torch.allclose(own, changed, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(before["b"], after["b"], atol=1e-3)


def test_a_step_moves_the_weights_by_rate_and_norm_alone():
    moved = []
    for factor in (1.0, 100.0):  # however steep the data are
        model = GRBM(3, 8, seed=2)
        state, was = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.02)), model.W.detach().clone()
        data = factor * exact_chains(random_model(3, 4, 1), 30, seed=0)[0].float()
        train_step(state, PCD(Gibbs(), 2, n_chains=20), data, FitOptions(spectral_norm=0.5, clip_norm=None))
        moved.append(float(torch.linalg.matrix_norm(model.W.detach() - was, 2)))
    assert all(0.67 * 0.02 * 0.5 < x < 1.21 * 0.02 * 0.5 for x in moved)


def test_spectral_steps_learn_the_exact_likelihood():
    """From the same start, with as many draws: 600 updates end far nearer to the machine that the rows were drawn from.

    Measured over three seeds: 0.019 nats a row below it, with an error of 0.001, and 0.061 with plain gradients.
    """
    truth = random_model(3, 4, 1)
    data = exact_chains(truth, 2000, seed=0)[0].float()
    options = FitOptions(n_updates=600, batch_size=100, centred=True, average_decay=0.99)
    best, below = exact.log_prob(truth.double(), data.double()).mean(), {}
    for norm in (None, 1.0):
        model = GRBM(3, 8, seed=2)
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05), seed=3)
        for _ in fit(state, data, PCD(Gibbs(), 5, probabilities=True), replace(options, spectral_norm=norm)):
            pass
        assert state.average is not None
        below[norm] = float(best - exact.log_prob(state.average.double(), data.double()).mean())
    assert below[1.0] < 0.025
    assert below[1.0] < 0.5 * below[None]
