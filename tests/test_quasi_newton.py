"""Rounds of quasi-Newton steps: the log-likelihood and its gradient against exact ones, and what a round may not do."""

import copy
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from grbm import GRBM, PCD, Base, FitOptions, Gibbs, ModifiedCD, ParallelTempering, TrainState, fit
from grbm.core.devices import threads
from grbm.core.randomness import Blocks, generator
from grbm.evaluate import exact
from grbm.learning import natural, quasi_newton
from grbm.learning.quasi_newton import (
    DRAWS,
    LEAST,
    Curvature,
    Draws,
    Height,
    ascended,
    averages,
    climb,
    direction,
    draw,
    free_energies,
    height,
    natively_ascended,
)
from grbm.learning.training import FRESH, follow, train_round, train_step
from grbm.model import Energy
from grbm.model.initialise import matched_
from grbm.model.reference import Reference
from grbm.runs import checkpoint
from grbm.samplers import GlobalMoves
from grbm.samplers.engines import compiled, native_averages
from tests.helpers import assert_standard, random_model


def reference(N: int, scale: float = 2.0) -> Reference:
    """A Gaussian with independent units."""
    return Reference(torch.ones(1), torch.zeros(1, N), scale * torch.eye(N)[None])


def clusters(n: int, seed: int = 0) -> Tensor:
    """Four clusters of width 1, six apart and of unequal masses."""
    rng = generator(seed, "clusters")
    centres = torch.tensor([[-3.0, -3.0], [-3.0, 3.0], [3.0, -3.0], [3.0, 3.0]])
    which = torch.multinomial(torch.tensor([0.4, 0.3, 0.2, 0.1]), n, replacement=True, generator=rng)
    return centres[which] + torch.randn(n, 2, generator=rng)


def exactly(model: GRBM) -> Energy:
    energy = model.freeze()
    return Energy(*(x.detach().double() for x in (energy.W, energy.b, energy.mu, energy.var)))


@pytest.mark.parametrize("prior", [0.0, 0.3])
def test_the_gradient_is_autograds(prior):
    model = random_model(3, 5, 0).double()
    rng = generator(0)
    rows = torch.randn(70, 3, generator=rng, dtype=torch.float64)
    draws = Draws(*(torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((90, 3), (90,))))
    found = height(exactly(model), rows, draws, prior)
    theta = natural.vector(exactly(model)).requires_grad_()
    energy = natural.energy_of(theta, 3, 5)
    log_z = (-energy.free_energy(draws.v) - draws.log_q).logsumexp(0) - math.log(90)
    value = -energy.free_energy(rows).mean() - log_z - 0.5 * prior * theta[:15].square().sum()
    value.backward()
    assert found.value == pytest.approx(value.item(), abs=1e-12)
    torch.testing.assert_close(found.gradient, theta.grad, rtol=1e-10, atol=1e-12)


def test_natural_parameters_are_those_of_the_machine():
    """There and back; a change of λ leaves where hidden units turn on."""
    model = random_model(3, 5, 0).double()
    energy = exactly(model)
    theta = natural.vector(energy)
    again = natural.energy_of(theta, 3, 5)
    for name in ("W", "b", "mu", "var"):
        torch.testing.assert_close(getattr(again, name), getattr(energy, name))
    v = torch.randn(20, 3, generator=generator(0), dtype=torch.float64)
    theta[-3:] += torch.tensor([0.5, -1.0, 2.0])
    torch.testing.assert_close(natural.energy_of(theta, 3, 5).hidden_logits(v), energy.hidden_logits(v))


@pytest.mark.skipif(compiled.library() is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("N", "M", "n"), [(1, 1, 1), (2, 7, 5), (3, 8, 257), (6, 225, 1026), (25, 2000, 300), (3, 9, 9999)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_native_averages_are_the_definition(N, M, n, weighted):
    """Sizes that fill neither rows, lanes nor parts; weights of e^100; the same for any number of threads."""
    rng = generator(N + M + n, "averages")
    W, b, mu = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((N, M), (M,), (N,)))
    energy = Energy(W, 20 * b, mu, torch.rand(N, generator=rng, dtype=torch.float64) + 0.1)
    v = 5 * torch.randn(n, N, generator=rng, dtype=torch.float64)
    log_q = 30 * torch.randn(n, generator=rng, dtype=torch.float64) - energy.free_energy(v) if weighted else None
    found, expected = native_averages.averaging(energy)(v, log_q), averages(energy, v, log_q)
    torch.testing.assert_close(found.free_energy, expected.free_energy, rtol=1e-13, atol=1e-11)
    for mean, its in zip(found.means, expected.means, strict=True):
        torch.testing.assert_close(mean, its, rtol=1e-10, atol=1e-10)
    assert found[2:] == pytest.approx(expected[2:], rel=1e-10, abs=1e-10)
    with threads(4):
        again = native_averages.averaging(energy)(v, log_q)
    assert again[2:] == found[2:]
    pairs = zip((again.free_energy, *again.means), (found.free_energy, *found.means), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.skipif(compiled.library() is None, reason="there is no C compiler")
def test_native_averages_of_many_units_and_of_no_weight():
    """2^2000 is beyond float64; of 300 states, all of the first 256 have no weight."""
    W, b, mu = (torch.zeros(*shape, dtype=torch.float64) for shape in ((1, 2000), (2000,), (1,)))
    energy = Energy(W, b, mu, torch.ones(1).double())
    v = torch.randn(300, 1, generator=generator(0), dtype=torch.float64)
    log_q = torch.zeros(300, dtype=torch.float64)
    log_q[:256] = math.inf
    found, expected = native_averages.averaging(energy)(v, log_q), averages(energy, v, log_q)
    torch.testing.assert_close(found.free_energy, 0.5 * v[:, 0].square() - 2000 * math.log(2))
    for mean, its in zip(found.means, expected.means, strict=True):
        torch.testing.assert_close(mean, its)
    assert found[2:] == pytest.approx(expected[2:])


@pytest.mark.skipif(compiled.library() is None, reason="there is no C compiler")
def test_native_probabilities_are_exact_to_the_rarest():
    """exp over all of its range, to some last digits, and 0 below it."""
    b = torch.cat([torch.linspace(-700, 700, 2801).double(), torch.tensor([-1e3, -740.0, 1e3]).double()])
    zero = torch.zeros(1).double()
    energy = Energy(torch.zeros(1, len(b)).double(), b, zero, torch.ones(1).double())
    found = native_averages.averaging(energy)(zero[None], None).means.h
    torch.testing.assert_close(found, b.sigmoid(), rtol=1e-14, atol=1e-300)


def test_averages_of_tempered_or_large_machines_are_not_taken_natively():
    """They have another energy, or products that PyTorch is better at."""
    energy = Energy(*(torch.ones(*shape).double() for shape in ((2, 3), (3,), (2,), (2,))))
    base = Base(torch.zeros(2).double(), torch.ones(2).double())
    large = Energy(*(torch.ones(*shape).double() for shape in ((512, 257), (257,), (512,), (512,))))
    assert native_averages.serves(energy) is (compiled.library() is not None)
    assert not native_averages.serves(energy.temper(torch.tensor(0.5).double(), base))
    assert not native_averages.serves(large)


def test_native_averages_of_far_states_are_finite():
    """Logits of ±1e5, where exp would leave the finite world."""
    energy = Energy(torch.tensor([[1e3, -1e3, 0.0]]).double(), torch.zeros(3).double(), *torch.ones(2, 1).double())
    v = torch.tensor([[-100.0], [0.0], [100.0]]).double()
    ways = [partial(averages, energy), *([native_averages.averaging(energy)] if native_averages.serves(energy) else [])]
    for way in ways:
        free_energy, means, *_ = way(v, None)
        expected = 0.5 * (v[:, 0] - 1).square() - 1e3 * v[:, 0].abs() - math.log(2)
        expected[1] -= 2 * math.log(2)
        torch.testing.assert_close(free_energy, expected)
        torch.testing.assert_close(means.h, torch.full((3,), 0.5).double())


@pytest.mark.parametrize("k", range(4))
def test_the_log_likelihood_is_the_exact_one(k):
    """Within the error of the draws' weights; a wrong share of the pool would be wrong by tenths of a nat."""
    model = random_model(3, 8, k, strength=1.5)
    rows = exact.sample(model.double(), 300, seed=k)[0].double()
    model, covariance = model.float(), 1.5 * torch.cov(rows.T)
    near = Reference(torch.ones(1), rows.mean(0)[None].float(), torch.linalg.cholesky(covariance)[None].float())
    drawn = draw(model.freeze(), GlobalMoves(near), rows[:256].float(), Blocks(k, 1), seed=k)
    assert len(drawn.draws.v) == 2 * DRAWS
    assert drawn.last.shape == (256, 3)
    found = height(exactly(model), rows, drawn.draws)
    expected = -float(model.double().free_energy(rows).detach().mean()) - exact.log_z(model)
    error = math.sqrt((1 / found.share - 1) / len(drawn.draws.v)) + 0.01  # and that of Bennett's ratio
    assert_standard((found.value - expected) / error, n_cases=4)


def test_draws_of_the_model_alone_tell_ratios():
    """Without a reference the log-likelihood is known but for a constant: log Z where the round begins."""
    model, other = (random_model(2, 6, 1, strength=0.5, dtype=torch.float32) for _ in range(2))
    with torch.no_grad():
        other.W.mul_(0.8)
    start = exact.sample(model, 256)[0].float()
    drawn = draw(model.float().freeze(), Gibbs(), start, Blocks(0, 1), seed=0)
    rows = torch.zeros(1, 2).double()

    def at(m: GRBM) -> float:
        return height(exactly(m), rows, drawn.draws).value

    def truly(m: GRBM) -> float:
        return -float(m.double().free_energy(rows).detach()) - exact.log_z(m)

    assert abs((at(other) - at(model)) - (truly(other) - truly(model))) < 0.05


def test_directions_are_of_the_inverse_hessian():
    """Against the BFGS formula, written out (Nocedal & Wright 2006, Eq. 7.16)."""
    rng = generator(3)
    A = torch.randn(6, 6, generator=rng, dtype=torch.float64)
    hessian = A @ A.T + torch.eye(6)
    steps = torch.randn(4, 6, generator=rng, dtype=torch.float64)
    falls, gradient = steps @ hessian, torch.randn(6, generator=rng, dtype=torch.float64)
    s, y = steps[-1], falls[-1]
    inverse = (s @ y) / (y @ y) * torch.eye(6, dtype=torch.float64)
    for s, y in zip(steps, falls, strict=True):
        V = torch.eye(6) - torch.outer(y, s) / (s @ y)
        inverse = V.T @ inverse @ V + torch.outer(s, s) / (s @ y)
    torch.testing.assert_close(direction(gradient, Curvature(steps, falls)), inverse @ gradient)


def round_of(model: GRBM, data: Tensor, seed: int = 0) -> tuple[Draws, Curvature]:
    sampler = GlobalMoves(reference(2, 4.0))
    start = sampler.noise(model.freeze(), 256, generator(seed))
    return draw(model.freeze(), sampler, start, Blocks(seed, 1), seed=seed).draws, Curvature.empty(
        parameters_to_vector(model.parameters())
    )


def test_a_round_climbs_and_keeps_its_draws():
    data = clusters(1000)
    model = matched_(GRBM(2, 64), data)
    draws, memory = round_of(model, data)
    before = height(exactly(model), data.double(), draws)
    memory, began, after = climb(model, data, draws, memory, min_var=1e-4)
    assert began == pytest.approx(before.value, abs=1e-9)
    there = height(exactly(model), data.double(), draws)
    assert after.value == pytest.approx(there.value, abs=1e-4)  # parameters are float32
    assert there.value > before.value + 0.1
    assert there.share >= 0.99 * LEAST
    assert len(memory.steps) == len(memory.falls) > 2
    assert ((memory.steps * memory.falls).sum(1) > 0).all()


def test_variances_stay_above_their_floor():
    data = clusters(1000)
    model = matched_(GRBM(2, 64), data)
    draws, memory = round_of(model, data)
    free = copy.deepcopy(model)
    climb(free, data, draws, memory, min_var=1e-4)
    climb(model, data, draws, memory, min_var=1.05)
    assert (model.var >= 1.05 - 1e-6).all()
    assert (model.var < 1.05 + 1e-3).any()
    assert (free.var < 1.04).any()


def test_where_no_step_climbs_nothing_changes():
    model = matched_(GRBM(2, 64), clusters(500))
    draws, memory = round_of(model, torch.zeros(1, 2))
    hopeless = draws._replace(log_q=draws.log_q + 1e3 * torch.arange(len(draws.v)))  # one draw has all the weight
    before = copy.deepcopy(model.state_dict())
    memory, _, after = climb(model, clusters(500), hopeless, memory, min_var=1e-4)
    assert after.share < 1e-3
    assert not len(memory.steps)
    for name, p in model.state_dict().items():
        assert torch.equal(p, before[name]), name


def learned(options: FitOptions, objective: PCD, state: TrainState | None = None) -> TrainState:
    data = clusters(2000)
    if state is None:
        model = matched_(GRBM(2, 64), data)
        rest = [p for name, p in model.named_parameters() if name != "log_var"]
        groups = [{"params": rest}, {"params": [model.log_var], "lr": 0.005}]
        state = TrainState(model, torch.optim.SGD(groups, lr=0.05))
    for _ in fit(state, data, objective, options):
        pass
    return state


MOVES = PCD(GlobalMoves(reference(2, 4.0)), 1, 256, probabilities=True)
OPTIONS = FitOptions(120, 256, centred=True, min_var=1e-4, average_decay=0.99, rounds=20)


def kl(model: GRBM) -> float:
    """KL(data ‖ model) by held-out rows, log Z by quadrature."""
    rows = clusters(20_000, seed=1).double()
    centres = torch.tensor([[-3.0, -3.0], [-3.0, 3.0], [3.0, -3.0], [3.0, 3.0]]).double()
    squares = (rows[:, None] - centres).square().sum(-1)
    log_p = (torch.tensor([0.4, 0.3, 0.2, 0.1]).double().log() - 0.5 * squares).logsumexp(1) - math.log(2 * math.pi)
    log_z = exact.quadrature(model).log_z
    return (log_p + model.double().free_energy(rows).detach()).mean().item() + log_z


@pytest.mark.whole
def test_rounds_learn_what_stochastic_gradients_do_not():
    """100 updates and 20 rounds lead further than ten times as many updates alone."""
    rounds = learned(OPTIONS, MOVES)
    assert rounds.update == 120
    assert rounds.average is not None
    plain = learned(replace(OPTIONS, n_updates=1000, rounds=0), MOVES)
    found, other = kl(rounds.average), kl(plain.average)
    assert found < 0.9 * other, (found, other)


def test_rounds_with_a_prior_end_at_the_most_probable_parameters():
    """L-BFGS on the log-posterior itself, whose states of h are enumerated, gains nothing."""
    data, prior = clusters(400), 40.0
    model = matched_(GRBM(2, 4), data)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in fit(state, data, MOVES, FitOptions(12, 256, min_var=1e-4, rounds=12, prior=prior)):
        pass
    theta = natural.vector(exactly(model)).requires_grad_()

    def nats() -> Tensor:
        U, b, eta, log_precision = theta.split([8, 4, 2, 2])
        var, h = (-log_precision).exp(), torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
        squares = (eta + h @ U.view(2, 4).T).square() - eta.square()
        log_z = (h @ b + 0.5 * squares @ var).logsumexp(0) + 0.5 * var.log().sum() + math.log(2 * math.pi)
        rows = -natural.energy_of(theta, 2, 4).free_energy(data.double()).mean()
        return rows - log_z - prior / (2 * 400) * U.square().sum()

    def down() -> Tensor:
        optimizer.zero_grad()
        loss = -nats()
        loss.backward()
        return loss

    found = float(nats().detach())
    optimizer = torch.optim.LBFGS([theta], max_iter=500, line_search_fn="strong_wolfe")
    optimizer.step(down)
    best = float(nats().detach())
    assert best - 0.002 < found < best + 1e-9


@pytest.mark.parametrize("sampler", [Gibbs(), ParallelTempering(Base(torch.zeros(2), torch.full((2,), 10.0)), 3)])
def test_rounds_go_with_any_persistent_chains(sampler):
    objective = PCD(sampler, 5, 128, probabilities=True)
    state = learned(replace(OPTIONS, n_updates=104, rounds=4), objective)
    assert state.persistent.shape == ((3, 128, 2) if isinstance(sampler, ParallelTempering) else (128, 2))
    before = learned(replace(OPTIONS, n_updates=100, rounds=0), objective)
    assert kl(state.average) < kl(before.average) - 0.02


def test_a_resumed_round_is_the_same_bit_for_bit(tmp_path: Path):
    options = replace(OPTIONS, n_updates=46, rounds=6)
    whole = learned(options, MOVES)
    half = TrainState(copy.deepcopy(matched_(GRBM(2, 64), clusters(2000))), torch.optim.SGD([torch.zeros(1)]))
    rest = [p for name, p in half.model.named_parameters() if name != "log_var"]
    half.optimizer = torch.optim.SGD([{"params": rest}, {"params": [half.model.log_var], "lr": 0.005}], lr=0.05)
    for _ in fit(half, clusters(2000), MOVES, options):
        if half.update == 43:
            break
    checkpoint.save(tmp_path, half)
    fresh = TrainState(GRBM(2, 64), torch.optim.SGD([torch.zeros(1)]))
    rest = [p for name, p in fresh.model.named_parameters() if name != "log_var"]
    fresh.optimizer = torch.optim.SGD([{"params": rest}, {"params": [fresh.model.log_var], "lr": 0.005}], lr=0.05)
    saved = checkpoint.newest(tmp_path, fresh)
    assert saved is not None
    checkpoint.restore(fresh, saved)
    assert fresh.curvature is not None
    assert len(fresh.curvature.steps) > 0
    resumed = learned(options, MOVES, fresh)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(whole.persistent, resumed.persistent)
    assert torch.equal(whole.curvature.steps, resumed.curvature.steps)


def test_what_rounds_cannot_do_is_refused():
    state = TrainState(model := GRBM(2, 4), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="persistent chains"):
        fit(state, clusters(50), ModifiedCD(Gibbs(), 2), FitOptions(10, 20, rounds=2))
    with pytest.raises(ValueError, match="3 are more than 2"):
        fit(state, clusters(50), PCD(Gibbs(), 2), FitOptions(2, 20, rounds=3))
    with pytest.raises(ValueError, match="rounds must be at least 0"):
        fit(state, clusters(50), PCD(Gibbs(), 2), FitOptions(2, 20, rounds=-1))


def test_the_average_goes_on_over_rounds(monkeypatch):
    """The first round begins at it, and each moves it by its share towards where the round ended."""
    monkeypatch.setattr(quasi_newton, "STEPS", 1)  # short ones
    data, options = clusters(500), FitOptions(n_updates=3, rounds=3, average_decay=0.9, min_var=1e-4)
    model, average = (matched_(GRBM(2, 16), data, seed=k) for k in (0, 1))
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1), average=average)
    expected = {name: p.detach().clone() for name, p in average.named_parameters()}
    for k in range(2):
        train_round(state, MOVES, data, options)
        for name, p in state.model.named_parameters():
            expected[name].lerp_(p.detach(), FRESH)
        assert k > 0 or not torch.equal(state.model.W, average.W)
        for name, p in average.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name])
    assert state.curvature is not None
    train_step(state, MOVES, data[:100], options)
    assert state.curvature is None  # of rounds that follow one another


def test_the_average_does_not_lie_between_parameters_that_are_far_apart():
    """Two machines that differ in the order of their hidden units are one density; halfway between is another."""
    data = clusters(500)
    here, there = GRBM(2, 2), GRBM(2, 2)
    with torch.no_grad():
        here.W.copy_(torch.tensor([[6.0, 0.0], [0.0, 6.0]]))
        here.mu.fill_(-3.0)
        here.b.copy_(-(here.W.square().sum(0) / 2 + here.W.T @ here.mu))
    for name, p in there.state_dict().items():
        p.copy_(here.state_dict()[name].flip(-1) if name in ("W", "b") else here.state_dict()[name])
    energy = exactly(here)
    rng = generator(0, "draws")
    h = torch.randint(2, (500, 2), generator=rng).double()  # all four states are as probable
    v = energy.visible_mean(h) + torch.randn(500, 2, generator=rng, dtype=torch.float64)
    draws = Draws(v, -energy.free_energy(v))
    began = height(energy, data.double(), draws).value
    average = copy.deepcopy(here)
    follow(average, there, began, data, draws, 0.0)
    assert torch.equal(average.W, there.W)
    nearly = copy.deepcopy(here)
    with torch.no_grad():  # up the log-likelihood: the masses are unequal
        nearly.b.sub_(0.2)
    follow(average := copy.deepcopy(here), nearly, began, data, draws, 0.0)
    torch.testing.assert_close(average.b, here.b - FRESH * 0.2)


def test_the_average_is_not_trusted_on_few_draws():
    """What no draw says anything of has a log Z of next to nothing, and looks better than all."""
    average, model = GRBM(2, 2), GRBM(2, 2)
    with torch.no_grad():
        model.mu.fill_(100.0)
    v = torch.randn(100, 2, generator=generator(0)).double()
    draws, rows = Draws(v, -exactly(average).free_energy(v)), v + 30.0  # near where the average would be
    followed = copy.deepcopy(average)
    with torch.no_grad():
        followed.mu.fill_(FRESH * 100)
    began, reached = (height(exactly(m), rows, draws) for m in (average, followed))
    assert reached.value > began.value
    assert reached.share < LEAST
    follow(average, model, began.value, rows.float(), draws, 0.0)
    assert torch.equal(average.mu, model.mu)


@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_the_average_is_judged_with_the_prior(prior):
    """It goes all the way where what the prior takes from it would bring it below where the round began."""
    average, model = random_model(2, 4, 0), random_model(2, 4, 1)
    own = model.W.detach().clone()
    v = torch.randn(500, 2, generator=generator(0)).double()
    draws = Draws(v, -exactly(average).free_energy(v))
    followed = copy.deepcopy(average)
    with torch.no_grad():
        for moved, parameter in zip(followed.parameters(), model.parameters(), strict=True):
            moved.lerp_(parameter, FRESH)
    likely = height(exactly(followed), v, draws)
    assert likely.share > LEAST
    follow(average, model, likely.value - 1e-3, v.float(), draws, prior)
    torch.testing.assert_close(average.W, own if prior else followed.W)


def test_the_average_takes_the_weights_of_contrasts_too():
    """Where it goes all the way: no draw has a weight under what it would else become."""
    average, model = GRBM(2, 2, n_contrasts=3), GRBM(2, 2, n_contrasts=3)
    with torch.no_grad():
        model.mu.fill_(50.0)
    assert model.contrasts.n > 1
    model.contrasts = model.contrasts._replace(log_weights=torch.tensor([0.1, 0.8, 0.1]).log())
    v = torch.randn(100, 2, generator=generator(0)).double()
    draws = Draws(v, -exactly(average).free_energy(v))
    follow(average, model, height(exactly(average), v, draws).value, v.float(), draws, 0.0)
    assert average.contrasts.n > 1
    assert torch.equal(average.mu, model.mu)
    assert torch.equal(average.contrasts.log_weights, model.contrasts.log_weights)


def test_of_many_parameters_there_are_many_draws():
    """One for each of W, and 2,048 of the reference where there is one."""
    chains = torch.zeros(64, 4, dtype=torch.float64)
    for n_hidden, n_draws in ((8, DRAWS), (700, 2816), (3000, 8192)):
        found = draw(random_model(4, n_hidden, 0).freeze(), Gibbs(), chains, Blocks(0, 1), seed=0)
        assert len(found.draws.v) == n_draws, n_hidden
    found = draw(random_model(4, 8, 0).freeze(), GlobalMoves(reference(4)), chains, Blocks(0, 1), seed=0)
    assert len(found.draws.v) == 2 * DRAWS


def test_log_z_is_from_draws_that_a_run_keeps_and_no_step_is_made_by():
    """The same in every round of it, others in another run, and as many as are promised."""
    q, models = reference(4), [random_model(4, 8, seed) for seed in (0, 1)]
    chains, found = torch.zeros(64, 4, dtype=torch.float64), {}
    for k, (model, seed) in enumerate([(models[0], 5), (models[1], 5), (models[0], 6)]):
        drawn = draw(model.freeze(), GlobalMoves(q), chains, Blocks(k, 1), seed=seed)
        forth = drawn.log_weights.forth
        assert len(forth) == quasi_newton.FORTH == 16384
        kept = quasi_newton.standing_draws(q.to(model.freeze().W), seed)
        torch.testing.assert_close(forth, -model.freeze().to(torch.float64).free_energy(kept.v) - kept.log_q)
        torch.testing.assert_close(drawn.free_energy, free_energies(model.freeze(), drawn.draws.v))
        found[k] = kept.v, {tuple(v) for v in drawn.draws.v.tolist()}
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][0], found[2][0])
    for standing, pool in found.values():
        assert not pool & {tuple(v) for v in standing.tolist()}


def test_a_search_begins_at_four_times_the_last_step(monkeypatch):
    """Of lengths 1, ½, ¼, ...: the first step may be 1/16 at most, later ones as long as they like."""
    here, tried = [0.0], []
    slope = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)  # by b alone

    def measured(energy, rows, draws, prior):
        b = float(energy.b)
        tried.append(b - here[-1])
        fits = len(here) > 1 or tried[-1] <= 1 / 16
        here.extend([b] if fits and tried[-1] else [])
        return Height(b, slope, 1.0 if fits else 0.0)

    monkeypatch.setattr(native_averages, "serves", lambda energy: False)
    monkeypatch.setattr(quasi_newton, "height", measured)
    monkeypatch.setattr(quasi_newton, "direction", lambda gradient, curvature: slope)
    model, rows = GRBM(1, 1), torch.zeros(1, 1)
    for p in model.parameters():
        p.data.zero_()
    climb(model, rows, Draws(rows.double(), torch.zeros(1)), Curvature.empty(slope), min_var=0.01)
    assert tried[:8] == [0.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.25, 1.0]


@pytest.mark.skipif(compiled.library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("known", [0, 3, 50], ids=["first round", "few steps", "more than are remembered"])
@pytest.mark.parametrize(("highest", "prior"), [(-0.01, 0.0), (9.0, 0.0), (9.0, 0.01)], ids=["floor", "free", "prior"])
def test_a_native_round_is_the_definition(known, highest, prior, monkeypatch):
    """Some steps, since rounding grows in a long search; the same for any number of threads."""
    monkeypatch.setattr(quasi_newton, "STEPS", 6)
    data, model = 0.2 * clusters(700), GRBM(2, 21, seed=0)
    draws, memory = round_of(model, data)
    size, start = (2, 21), natural.vector(exactly(model))
    rng = generator(known, "pairs")
    steps = 1e-3 * torch.randn(known, len(start), generator=rng, dtype=torch.float64)
    memory = Curvature(steps, steps * torch.linspace(0.5, 2, len(start), dtype=torch.float64))
    given = start, size, data.double(), draws, memory, highest, prior
    expected, found = ascended(*given), natively_ascended(*given)
    assert found.reached.value > found.began + 0.01
    assert bool((found.end[-2:] == highest).any()) == (highest < 1)
    torch.testing.assert_close(found.end, expected.end, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.reached.gradient, expected.reached.gradient, rtol=1e-6, atol=1e-9)
    numbers = [(x.began, x.reached.value, x.reached.share) for x in (found, expected)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9)
    for its, known_by in zip(found.curvature, expected.curvature, strict=True):
        torch.testing.assert_close(its, known_by, rtol=1e-6, atol=1e-9)
    with threads(3):
        again = natively_ascended(*given)
    assert torch.equal(again.end, found.end)


@pytest.mark.skipif(compiled.library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("broken", ["hopeless draws", "far away"])
def test_a_native_round_that_cannot_climb_ends_where_it_began(broken):
    data = clusters(300)
    model = matched_(GRBM(2, 21), data)
    draws, memory = round_of(model, data)
    if broken == "hopeless draws":
        draws = draws._replace(log_q=draws.log_q + 1e3 * torch.arange(len(draws.v)))
    else:
        model.mu.data.fill_(1e30)
    start = natural.vector(exactly(model))
    given = start, (2, 21), data.double(), draws, memory, 9.0, 0.01
    expected, found = ascended(*given), natively_ascended(*given)
    assert torch.equal(found.end, start)
    assert not len(found.curvature.steps)
    assert found.reached.share == pytest.approx(expected.reached.share)
    assert found.reached.value == pytest.approx(expected.reached.value)
