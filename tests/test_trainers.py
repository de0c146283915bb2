"""Trainers of the literature: each rule's way is what its paper says, by enumeration, quadrature or autograd."""

import copy
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from benchmarks.trainers import loops, methods, rules
from benchmarks.trainers.methods import METHODS
from benchmarks.trainers.tasks import Task, plane
from grbm import GRBM, Gibbs
from grbm.core.randomness import Blocks, generator
from grbm.data.mixtures import MIXTURES
from grbm.evaluate import exact
from grbm.samplers import run_chains
from grbm.samplers.moments import Moments, gradient
from tests.helpers import assert_standard, exact_gradient, mean_z, z_bound

NAMES = ("W", "b", "mu", "log_var")


def machine(n_visible: int = 3, n_hidden: int = 4, size: float = 0.7, seed: int = 1) -> GRBM:
    """Float64, of no special form."""
    model, rng = GRBM(n_visible, n_hidden, dtype=torch.float64), generator(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(size * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return model


def rows(n: int = 30, n_visible: int = 3) -> torch.Tensor:
    return torch.randn(n, n_visible, generator=generator(5), dtype=torch.float64)


def by_autograd(value: torch.Tensor, model: GRBM) -> dict[str, torch.Tensor]:
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(model.named_parameters(), found, strict=True)
    }


def agree(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name in NAMES:
        torch.testing.assert_close(found[name], expected[name], atol=1e-10, rtol=1e-8)


def log_z(model: GRBM) -> torch.Tensor:
    """By enumeration, differentiable."""
    h = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * model.n_hidden)
    mean = model.mu + h @ model.W.T
    visible = 0.5 * ((mean.square() - model.mu.square()) / model.log_var.exp()).sum(1)
    return (h @ model.b + visible).logsumexp(0) + 0.5 * (math.log(2 * math.pi) + model.log_var).sum()


def flipped(model: GRBM, j: int) -> GRBM:
    """The same density, with the states of hidden unit j exchanged."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.mu.add_(model.W[:, j])
        other.W[:, j], other.b[j] = -model.W[:, j], -model.b[j]
    return other


def test_the_flip_leaves_the_density_as_it_is():
    model, v = machine(), rows()
    other = flipped(model, 2)
    torch.testing.assert_close(exact.log_prob(other, v), exact.log_prob(model, v))


def test_the_enhanced_gradient_commutes_with_flips_of_hidden_units():
    """A step and then a flip is a flip and then a step, of W, b and mu; with the plain gradient it is not."""
    model, v = machine(), rows()

    def way(m: GRBM, plain: bool) -> dict[str, torch.Tensor]:
        energy = m.freeze()
        data, at_model = rules.at_data(energy, v), exact.moments(m)
        return gradient(energy, data, at_model) if plain else rules.enhanced(energy, data, at_model)

    apart = {}
    for plain in (False, True):
        stepped, other = copy.deepcopy(model), flipped(model, 2)
        found = {name: (x if name != "log_var" else 0 * x) for name, x in way(stepped, plain).items()}
        of_other = {name: (x if name != "log_var" else 0 * x) for name, x in way(other, plain).items()}
        with torch.no_grad():
            loops.climb(stepped, found, 0.1, 1e-9)
            loops.climb(other, of_other, 0.1, 1e-9)
        again = flipped(stepped, 2)
        apart[plain] = max(
            float((a - b).abs().max()) for a, b in zip(again.parameters(), other.parameters(), strict=True)
        )
    assert apart[False] < 1e-12
    assert apart[True] > 1e-3


def test_the_enhanced_gradient_is_the_difference_of_covariances():
    model, v = machine(), rows()
    energy, data = model.freeze(), None
    data, at_model = rules.at_data(energy, v), exact.moments(model)
    expected = (data.vh - torch.outer(data.v, data.h) - at_model.vh + torch.outer(at_model.v, at_model.h)) / energy.var[
        :, None
    ]
    torch.testing.assert_close(rules.enhanced(energy, data, at_model)["W"], expected)


def test_sparsity_climbs_its_penalty():
    model, v = machine(), rows()
    penalty = -(0.1 - model(v).mean(0)).square().sum()
    expected = by_autograd(penalty, model)["b"]
    torch.testing.assert_close(rules.sparsity(model.freeze(), v, 0.1), expected)

    def nothing(model, batch, rng):
        return {name: torch.zeros_like(p) for name, p in model.named_parameters()}

    found = rules.Sparse(nothing, 0.1, 3.0)(model, v, Blocks(0, 1))
    torch.testing.assert_close(found["b"], 3 * expected)
    assert not found["W"].any()


def test_score_matching_is_autograds_gradient_of_its_objective():
    model, v, weights = machine(), rows().requires_grad_(), torch.tensor([0.5, 1.0, 2.0]).double()
    psi = -model.free_energy_grad(v)
    slopes = [torch.autograd.grad(psi[:, i].sum(), v, create_graph=True)[0][:, i] for i in range(3)]
    objective = ((0.5 * psi.square() + torch.stack(slopes, 1)) @ weights).mean()
    agree(rules.ScoreMatching(weights)(model, v.detach(), Blocks(0, 1)), by_autograd(-objective, model))


def test_score_matching_stands_still_at_the_truth():
    """Of rows that the machine drew, the mean gradient is 0 within its error; with another variance not."""
    model = machine()
    v = exact.sample(model, 40_000, seed=2)[0]
    rule = rules.ScoreMatching(torch.tensor([0.5, 1.0, 2.0]).double())
    parts = [rule(model, part, Blocks(0, 1)) for part in v.split(400)]
    for name in NAMES:
        ways = torch.stack([part[name] for part in parts])
        assert_standard(mean_z(ways, 0.0), n_cases=len(NAMES))
    wider = torch.stack([rule(model, 1.1 * part, Blocks(0, 1))["log_var"] for part in v.split(400)])
    assert float((wider.mean(0) / (wider.std(0) / len(parts) ** 0.5)).abs().max()) > 8


def denoised(model: GRBM, tau: object, row: torch.Tensor, xi: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The objective of a row (N,) with noise xi (n, N) of weights (n,), written out."""
    psi = -model.free_energy_grad(row + tau * xi)
    return (weight * (0.5 * tau**2 * (psi + xi / tau).square()).sum(1)).sum()


def test_denoising_goes_downhill_of_what_it_says():
    model, xi = machine(2), torch.randn(5, 2, generator=generator(0), dtype=torch.float64)
    tau, fifth = torch.tensor([0.4, 0.2]).double(), torch.full((5,), 0.2, dtype=torch.float64)
    found = rules.denoising(model, rows(1, 2).expand(5, -1), xi, tau)
    agree(found, by_autograd(-denoised(model, tau, rows(1, 2)[0], xi, fifth), model))
    drawn = [rules.Denoising(tau, 10)(model, rows(3, 2), Blocks(k, 1))["W"] for k in (0, 0, 1)]
    rule, last = rules.Denoising(tau, 3), rules.Denoising(tau, 3, first=0.1)  # noise falls to a tenth
    falling = [rule(model, rows(3, 2), Blocks(0, 1))["W"] for _ in range(3)]
    torch.testing.assert_close(falling[2], last(model, rows(3, 2), Blocks(0, 1))["W"])
    assert float((falling[0] - falling[1]).abs().max()) > 1e-3
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_denoising_is_score_matching_of_rows_with_noise():
    """Its gradient is that of τ²/2 E|ψ − ∂log q|² for q the rows with noise, by quadrature in the plane."""
    model, v, tau = machine(2), rows(3, 2), 0.5
    axis = torch.linspace(-7, 7, 241, dtype=torch.float64)
    xi = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)
    weight = (-0.5 * xi.square().sum(1)).softmax(0)
    matched, noised = torch.zeros(()).double(), torch.zeros(()).double()
    for row in v:  # points of q's quadrature: about each row in turn
        x = row + tau * xi
        share = (-0.5 * ((x[:, None] - v) / tau).square().sum(2)).softmax(1)
        slope = (share[:, :, None] * (v - x[:, None])).sum(1) / tau**2
        psi = -model.free_energy_grad(x)
        matched = matched + (weight * 0.5 * tau**2 * (psi - slope).square().sum(1)).sum() / len(v)
        noised = noised + denoised(model, tau, row, xi, weight) / len(v)
    assert float(noised - matched) > 0.1  # they differ by what no parameter changes
    expected, found = by_autograd(matched, model), by_autograd(noised, model)
    for name in NAMES:
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-6)


def settled(model: GRBM, m: torch.Tensor, order: int) -> torch.Tensor:
    for _ in range(500):
        m = rules.iterate(model.freeze(), m, order)
    return m


def slopes(value: Callable[[GRBM], float], model: GRBM, name: str) -> list[tuple[tuple[int, ...], float]]:
    """By finite differences, at the first and the last entry of a parameter."""
    parameter, found = model.get_parameter(name), []
    for index in [(0,) * parameter.ndim, tuple(s - 1 for s in parameter.shape)]:
        values = []
        for sign in (1, -1):
            moved = copy.deepcopy(model)
            with torch.no_grad():
                moved.get_parameter(name)[index] += sign * 1e-5
            values.append(value(moved))
        found.append((index, (values[0] - values[1]) / 2e-5))
    return found


def leaning(n_hidden: int = 16, w: float = 0.36) -> GRBM:
    """Hidden units that agree: nearly all are on, or nearly none."""
    model = machine(3, n_hidden, size=0.02)
    with torch.no_grad():
        model.W.add_(w)
        model.b.sub_(3 * w**2 * n_hidden / 2)
    return model


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.whole)])
def test_mean_field_statistics_are_the_gradient_of_its_log_z(order):
    """At a fixed point the means do not matter to first order; by finite differences, the points found anew."""
    model, one = machine(size=0.3), torch.ones(1, dtype=torch.float64)
    m = settled(model, torch.full((1, 4), 0.5, dtype=torch.float64), order)

    def value(moved: GRBM) -> float:
        return float(rules.log_z_of(moved.freeze(), settled(moved, m, order), order))

    found = rules.statistics(model.freeze(), m, order, one)
    for name in NAMES:
        for index, slope in slopes(value, model, name):
            assert float(found[name][index]) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.whole)])
@pytest.mark.parametrize("weighted", [True, False])
def test_mean_field_of_two_fixed_points_climbs_by_their_weights_or_alike(order, weighted):
    """Three of four points at one, one at the other: the way is that of the data less that of log Σ_p exp(−Γ_p)."""
    model, v = leaning(), rows()
    m = settled(model, torch.tensor([[0.05] * 16] * 3 + [[0.95] * 16]).double(), order)
    assert float((m[0] - m[3]).mean().abs()) > 0.7
    energies = rules.log_z_of(model.freeze(), m, order)
    assert float((energies[0] - energies[3]).abs()) > 0.3
    rule = rules.MeanField(order, weighted, n_iterations=1)
    rule.m = m

    def value(moved: GRBM) -> float:
        log_zs = rules.log_z_of(moved.freeze(), settled(moved, m, order), order)
        at_data = -float(moved.double().free_energy(v).detach().mean())
        return at_data - float(log_zs.logsumexp(0) if weighted else log_zs.mean())

    found = rule(model, v, Blocks(0, 1))
    for name in NAMES:
        for index, slope in slopes(value, model, name):
            assert float(found[name][index]) == pytest.approx(slope, abs=1e-6)


def test_both_fixed_points_make_up_log_z():
    """Each is a part of it; of order 2 within a quarter of what order 1 misses."""
    errors = {}
    for order in (1, 2):
        m = settled(leaning(), torch.tensor([[0.05] * 16, [0.95] * 16]).double(), order)
        log_zs = rules.log_z_of(leaning().freeze(), m, order)
        errors[order] = float(log_zs.logsumexp(0)) - exact.log_z(leaning())
        assert float(log_zs.max()) < exact.log_z(leaning()) - 0.2
    assert abs(errors[2]) < 0.25 * abs(errors[1])


def test_mean_field_of_order_two_knows_log_z_of_weak_weights():
    errors = {}
    for order in (1, 2):
        model = machine(5, 6, size=0.1)
        m = torch.full((1, 6), 0.5, dtype=torch.float64)
        for _ in range(400):
            m = rules.iterate(model.freeze(), m, order)
        errors[order] = float(rules.log_z_of(model.freeze(), m, order)[0]) - exact.log_z(model)
    assert abs(errors[2]) < 0.1 * abs(errors[1])
    assert abs(errors[2]) < 1e-3


def test_mean_field_learning_is_the_likelihoods_gradient_where_weights_are_weak():
    model, v = machine(3, 4, size=0.05), rows()
    found = rules.MeanField(2, n_iterations=300)(model, v, Blocks(0, 1))
    expected = exact_gradient(model, v)
    for name in NAMES:
        torch.testing.assert_close(found[name], expected[name], atol=2e-4, rtol=1e-3)


def test_frozen_data_climb_at_every_outer_step(monkeypatch):
    """With exact expectations the inner problem is convex, and each outer step raises the likelihood, σ² held."""
    model, v, inner = machine(3, 4), rows(60), 200
    monkeypatch.setattr(rules, "run_chains", lambda energy, *a, **k: exact_walk(model, v))
    rule, values = rules.Frozen(inner), [float(exact.log_prob(model, v).mean())]
    for _ in range(6):
        for _ in range(inner):
            direction = rule(model, v, Blocks(0, 1))
            direction["log_var"] = torch.zeros_like(direction["log_var"])
            loops.climb(model, direction, 0.05, 1e-9)
        values.append(float(exact.log_prob(model, v).mean()))
    assert all(after > before - 1e-9 for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 0.05


def exact_walk(model: GRBM, v: torch.Tensor) -> SimpleNamespace:
    """What chains would give that are as many as one likes."""
    moments = exact.moments(model)
    return SimpleNamespace(sums=SimpleNamespace(mean=lambda: moments), chains=SimpleNamespace(v=v))


def test_frozen_data_are_those_of_the_first_inner_step_and_chains_begin_there():
    model, v = machine(), rows()
    rule = rules.Frozen(inner=2, n_steps=1)
    first = rule(model, v, Blocks(1, 1))
    kept = rule.data
    assert kept is not None
    energy = model.freeze()
    for a, b in zip(kept, rules.at_data(energy, v), strict=True):
        torch.testing.assert_close(a, b)
    left = rule.v
    rule(model, 100 + v, Blocks(2, 1))
    assert rule.data is kept
    begun_there = run_chains(energy, Gibbs(), left, 1, Blocks(2, 1)).chains.v
    assert torch.equal(rule.v, begun_there)
    third = rule(model, 100 + v, Blocks(3, 1))
    assert rule.data is not kept
    assert float((first["W"] - third["W"]).abs().max()) > 1


def test_one_variance_for_all_is_one_from_the_start_on():
    """And the state in which one hidden unit is active is a hundredth as probable as that in which none is."""
    task = plane("isotropic", MIXTURES["isotropic"])
    task = task._replace(rows=task.rows * torch.tensor([1.0, 5.0]), start=lambda model, seed: None)
    model = GRBM(2, 5)
    methods.rarely_active(model, task, 0)
    assert float(model.log_var.std()) == 0
    mean = model.mu[:, None] + model.W
    ratio = model.b + 0.5 * ((mean.square() - model.mu.square()[:, None]) / model.var[:, None]).sum(0)
    torch.testing.assert_close(ratio.exp(), torch.full((5,), 0.01))


def test_one_variance_for_all_moves_as_one():
    def up(model, batch, rng):
        return {name: torch.arange(p.numel()).view(p.shape).double() for name, p in model.named_parameters()}

    found = rules.shared_variance(up)(machine(), rows(), Blocks(0, 1))
    assert found["log_var"].tolist() == [1.0, 1.0, 1.0]
    assert found["W"][0, 1] == 1


@pytest.mark.parametrize("n_steps", [0, 1])
def test_weighted_walkers_follow_a_moving_machine(n_steps):
    """Means and log Z of 40 walks, W doubling in four updates: within 4 errors; unweighted and unmoved ones are off."""
    found, plain, zs = [], [], []
    for seed in range(40):
        model, rule = machine(2, 3), rules.Weighted(500, n_steps=n_steps)
        began = exact.log_z(model)
        for update in range(5):
            moments = rule.moments(model.freeze(), Blocks(1000 * seed + update, 1))
            if update < 4:
                with torch.no_grad():
                    model.W.mul_(2**0.25)
                    model.b.add_(0.2)
        moments = rule.moments(model.freeze(), Blocks(1000 * seed + 99, 1))
        found.append(torch.cat([moments.v, moments.h]))
        plain.append(torch.cat([rule.v.mean(0), model.freeze().hidden_logits(rule.v).sigmoid().mean(0)]))
        zs.append(rule.log_z())
    exactly = exact.moments(model)
    expected = torch.cat([exactly.v, exactly.h])
    for of, is_near in ((found, True), (plain, False)):
        draws = torch.stack(of)
        z = mean_z(draws, expected)
        if is_near:
            assert_standard(z, n_cases=2)
        elif n_steps == 0:
            assert float(z.abs().max()) > 8
    change = exact.log_z(model) - began
    values = torch.tensor(zs)
    assert abs(change) > 1
    assert abs(float(values.mean()) - change) < z_bound(2) * float(values.std()) / 40**0.5 + 0.01


def test_persistent_chains_give_the_machines_moments():
    model = machine(2, 3)
    chains = rules.Chains(Gibbs(), 20, 2000)
    parts = [chains.moments(model.freeze(), Blocks(k, 1)) for k in range(40)][10:]
    exactly = exact.moments(model)
    for name in Moments._fields:
        draws = torch.stack([getattr(part, name).flatten() for part in parts])
        assert_standard(mean_z(draws, getattr(exactly, name).flatten()), n=2 + 2 + 3 + 6)


def test_the_rate_that_is_taken_is_the_one_that_the_next_batch_likes():
    """By enumeration: a way that is too long wants less, one that is too short wants more."""
    model, v = machine(), rows(200)
    way = exact_gradient(model, v)
    particles = exact.sample(model, 20_000, seed=3)[0]
    small, large = 0.01, 2.0

    def value(rate: float) -> float:
        moved = copy.deepcopy(model)
        with torch.no_grad():
            loops.climb(moved, way, rate, 1e-9)
        return float(exact.log_prob(moved, v).mean())

    assert value(1.01 * small) > value(small) > value(0.99 * small)
    assert loops.best_rate(model, way, small, v, particles, (0, 10)) == pytest.approx(1.01 * small)
    assert value(1.01 * large) < value(0.99 * large)
    assert loops.best_rate(model, way, large, v, particles, (0, 10)) == pytest.approx(0.99 * large)
    assert loops.best_rate(model, way, small, v, particles, (0.05, 10)) == 0.05


def test_a_loop_repeats_itself_and_climbs():
    data = exact.sample(machine(2, 3, seed=4), 500, seed=1)[0].float()

    def learned(seed: int) -> GRBM:
        model = GRBM(2, 8, seed=seed)
        rule = rules.Enhanced(rules.Chains(Gibbs(), 5, 100))
        return loops.follow(model, rule, data, 300, loops.Steps(rate=0.1), seed).model

    one, two, other = learned(0), learned(0), learned(1)
    assert torch.equal(one.W, two.W)
    assert not torch.equal(one.W, other.W)
    assert exact.log_prob(one, data).mean() > exact.log_prob(GRBM(2, 8), data).mean() + 0.1


@pytest.mark.whole
@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.ground != "images"])
def test_every_trainer_learns_something_of_a_mixture(name):
    """After 150 updates of 100 rows it is far nearer to the rows than where it began; one collapses, as in Figure 1.

    Along the trajectory updates become slow, and 40 do.
    """
    task = plane("isotropic", MIXTURES["isotropic"])._replace(batch_size=100)
    before = task.judge(task.machine(0), 0)["KL"]
    after = task.judge(METHODS[name].learn(task, 0.01, 40 if "trajectory" in name else 150, 0).model, 0)["KL"]
    assert after > before if name == "modified CD, Gibbs-Langevin adjusted" else after < before - 2


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.ground == "images"])
def test_trainers_of_images_learn_something_of_few_columns(name):
    """Rows of a machine of three visible units: nats of them by enumeration, before and after 300 updates."""
    data = exact.sample(machine(3, 4, size=1.2), 2000, seed=1)[0].float()

    def judge(model: GRBM, seed: int) -> dict[str, float]:
        return {"nats": float(exact.log_prob(model, data).mean())}

    task = Task("few", data, 8, lambda model, seed: None, judge, "nats", True, judge)
    before = judge(task.machine(0), 0)["nats"]
    assert judge(METHODS[name].learn(task, 0.1, 300, 0).model, 0)["nats"] > before + 0.1
