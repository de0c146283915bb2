"""Machines with other hidden units: free energies by sums and integrals over them, chains and log Z by quadrature."""

import math

import pytest
import torch

from benchmarks.trainers import units
from grbm.core.randomness import generator
from tests.helpers import assert_standard, mean_z, z_bound

F64 = torch.float64


def machine(kind: type[units.Machine], n_hidden: int = 4, seed: int = 1) -> units.Machine:
    """Of two visible units, and of parameters that are not those of the start."""
    model, rng = kind(2, n_hidden).double(), generator(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=rng, dtype=F64))
        model.restrain()
    return model


def grid(n: int = 401, half: float = 12.0) -> tuple[torch.Tensor, float]:
    axis = torch.linspace(-half, half, n, dtype=F64)
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2), (2 * half / (n - 1)) ** 2


def test_rectified_units_are_integrals_over_what_is_above_zero():
    model, v = machine(units.Rectified), torch.randn(5, 2, generator=generator(0), dtype=F64)
    h = torch.linspace(0, 40, 400_001, dtype=F64)
    logits = (v / model.log_var.exp()) @ model.W + model.b
    inner = (logits[..., None] * h - 0.5 * h.square()).exp()
    hidden = torch.trapezoid(inner, h).log().sum(-1)
    expected = 0.5 * ((v - model.mu).square() / model.log_var.exp()).sum(-1) - hidden
    torch.testing.assert_close(model.free_energy(v), expected, atol=1e-7, rtol=1e-7)


def test_spikes_and_slabs_are_sums_over_h_and_integrals_over_s():
    """−log Σ_h ∫ exp(−E) ds of one unit, of E as published with Φ = 0, but for a constant."""
    model, v = machine(units.SpikeSlab, 1), torch.randn(5, 2, generator=generator(0), dtype=F64)
    s = torch.linspace(-60, 60, 600_001, dtype=F64)
    alpha, nu, drive = model.log_alpha.exp(), model.nu, v @ model.W
    parts = []
    for h in (0.0, 1.0):
        slab = 0.5 * alpha * s.square() - alpha * nu * s * h - drive * s * h
        constant = 0.5 * alpha * nu.square() * h - model.b * h
        parts.append(torch.trapezoid((-slab).exp(), s) * (-constant).exp())
    visible = 0.5 * (model.log_precision.exp() * (v - model.mu).square()).sum(-1)
    expected = visible - sum(parts).log() + (0.5 * (2 * math.pi / alpha).log())
    torch.testing.assert_close(model.free_energy(v), expected, atol=1e-7, rtol=1e-7)


def test_products_of_students_t_are_integrals_over_their_precisions():
    """∫ u^(γ−1) exp(−u (1 + ½(Cᵀv)²)) du over the same at v = 0 is (1 + ½(Cᵀv)²)^−γ."""
    model, v = machine(units.Products, 2), torch.randn(5, 2, generator=generator(0), dtype=F64)
    log_u = torch.linspace(-60, 8, 200_001, dtype=F64)
    u, gamma = log_u.exp(), model.log_gamma.exp()
    total = torch.zeros(5, dtype=F64)
    for f in range(len(gamma)):
        rate = 1 + 0.5 * (v @ model.C[:, f]).square()
        inner = (gamma[f] * log_u - u * rate[:, None]).exp()
        at_rest = torch.trapezoid((gamma[f] * log_u - u).exp(), log_u)
        total -= (torch.trapezoid(inner, log_u) / at_rest).log()
    bare = model.free_energy(v) - (gamma * (0.5 * (v @ model.C).square()).log1p()).sum(-1)
    torch.testing.assert_close(model.free_energy(v), bare + total, atol=1e-7, rtol=1e-7)


def test_covariance_units_are_sums_over_their_states():
    model, v = machine(units.Covariance), torch.randn(5, 2, generator=generator(0), dtype=F64)
    even = v / (v.square().mean(1, keepdim=True) + 0.5).sqrt()
    n_mean, n_covariance = len(model.b), len(model.d)
    states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=F64)] * (n_mean + n_covariance))
    var = model.log_var.exp()
    visible = 0.5 * ((v - model.mu).square() / var).sum(1)
    energies = []
    for state in states:
        h, k = state[:n_mean], state[n_mean:]
        mean = -((v / var) @ model.W @ h) - model.b @ h
        covariance = 0.5 * ((even @ model.C).square() @ model.P) @ k - model.d @ k
        energies.append(visible + mean + covariance)
    torch.testing.assert_close(model.free_energy(v), -(-torch.stack(energies)).logsumexp(0))


@pytest.mark.parametrize(
    "kind",
    [
        units.Covariance,
        *(pytest.param(x, marks=pytest.mark.whole) for x in units.MACHINES.values() if x is not units.Covariance),
    ],
)
def test_trajectories_leave_the_density_as_it_is_and_log_z_is_that_of_quadrature(kind):
    """Moments of 4,000 chains started from exact draws, after 10 trajectories."""
    model = machine(kind)
    points, cell = grid()
    with torch.no_grad():
        log_density = -model.free_energy(points)
        exactly = float(log_density.logsumexp(0)) + math.log(cell)
        weight = log_density.softmax(0)
    rng = generator(2)
    v = points[torch.multinomial(weight, 4000, replacement=True, generator=rng)]
    v = v + cell**0.5 * (torch.rand(v.shape, generator=rng, dtype=F64) - 0.5)
    for _ in range(10):
        v, rate = units.hamiltonian(model.free_energy, v, 0.4, 5, rng)
    assert 0.4 < rate < 0.999
    for of in (lambda x: x, torch.square, lambda x: x.prod(1, keepdim=True)):
        expected, draws = weight @ of(points), of(v)
        assert_standard(mean_z(draws, expected), n_cases=3 * len(units.MACHINES))
    found = units.log_z(model, v, n_steps=150, n_chains=300)
    bound, grid_error = z_bound(3 * len(units.MACHINES)), 0.01
    assert abs(found.lower - exactly) < bound * found.lower_error + grid_error
    assert abs(found.upper - exactly) < bound * found.upper_error + grid_error
    assert abs(found.log_z - exactly) < bound * found.error + grid_error
    assert found.converged
    assert max(found.lower_error, found.upper_error) < 0.1


@pytest.mark.whole
@pytest.mark.parametrize("kind", units.MACHINES.values())
def test_machines_learn_rows_that_no_gaussian_describes(kind):
    """Rows of two scales, white as a whole: more nats than a full-covariance Gaussian has, by quadrature."""
    rng = generator(0)
    scale = torch.tensor([0.4, 1.8])[(torch.rand(3000, generator=rng) < 0.3).long()]
    rows = scale[:, None] * torch.randn(3000, 2, generator=rng)
    rows = rows / rows.std(0)
    model = units.learn(kind(2, 8), rows, 500, rate=0.02, batch=200, n_leaps=5)
    points, cell = grid()
    with torch.no_grad():
        log_z = float((-model.free_energy(points.float()).double()).logsumexp(0)) + math.log(cell)
        found = float((-model.free_energy(rows)).mean()) - log_z
    assert found > -math.log(2 * math.pi) - 1 + 0.01
