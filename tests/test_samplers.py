"""Samplers against the distributions that they must leave alone, and against the paper's formulas step by step."""

import math
import re

import numpy as np
import pytest
import torch

from grbm import (
    GRBM,
    Annealed,
    Base,
    Gibbs,
    GibbsLangevin,
    Langevin,
    ParallelTempering,
    PartialGibbs,
    Sampler,
    TrajectoryTempering,
    sample,
    walk,
)
from grbm.core.randomness import Blocks, Philox, generator, normal, uniform
from grbm.core.schedules import cosine, cosine_steps
from grbm.evaluate import exact
from grbm.samplers import Moves, MoveSampler, StepInfo, Walk, run_chains
from grbm.samplers.engines import engine_for
from grbm.samplers.gibbs_langevin import k_step_moves
from grbm.samplers.moves import moves_of
from grbm.samplers.updates import accept, hidden_update, visible_update
from tests.helpers import (
    FEW_AND_MANY,
    assert_standard,
    exact_chains,
    random_model,
    share_z,
    two_modes,
    z_bound,
    z_scores,
)

EXACT = [
    Gibbs(),
    PartialGibbs(0.8),
    PartialGibbs(-0.7),
    Langevin(0.4, adjust_from=0),
    Langevin(0.4, adjust_from=0, per_unit=True),
    GibbsLangevin(0.15, adjust_from=0),
    GibbsLangevin(0.15, adjust_from=0, per_unit=True),
    GibbsLangevin(0.6, adjust_from=0, n_inner=1),
    GibbsLangevin(4.0, adjust_from=0, temperature=8.0, accept_temperature=1.0),
    GibbsLangevin(0.4, adjust_from=0, temperature=3.0, accept_temperature=1.0, joint=True),
    Langevin(1.0, adjust_from=0, temperature=4.0, accept_temperature=1.0),
]
BIASED = [Langevin(0.6), Langevin(0.6, per_unit=True), GibbsLangevin(0.4), GibbsLangevin(0.4, per_unit=True)]
ADJUSTED = GibbsLangevin(0.4, adjust_from=0)


class Alternating(Sampler):
    """Other samplers' steps in turn: a sampler that is more than moves, as a user would write it."""

    def __init__(self, *samplers):
        self.samplers = samplers

    @property
    def exact(self):
        return all(sampler.exact for sampler in self.samplers)

    def bind(self, energy, n_steps):
        steps = [sampler.bind(energy, n_steps) for sampler in self.samplers]
        return lambda chains, t, rng: steps[t % len(steps)](chains, t, rng)

    def __repr__(self):
        return "Alternating" + repr(self.samplers)


MADE_OF_OTHERS = [
    Alternating(Gibbs(), Langevin(0.4, adjust_from=0)),
    Alternating(Langevin(0.4, adjust_from=0), ADJUSTED),
]
EXACT += MADE_OF_OTHERS
OTHERS = [
    Annealed(sampler=ADJUSTED),
    TrajectoryTempering(sampler=ADJUSTED),
    ParallelTempering(n_replicas=3, sampler=Alternating(Gibbs(), ADJUSTED)),
    ParallelTempering(n_replicas=3, sampler=GibbsLangevin(0.4, adjust_from=0)),
    Langevin(0.3, adjust_from=5),
    ParallelTempering(n_replicas=3),
    ParallelTempering(ladder=(0.0, 0.7, 1.0)),
    TrajectoryTempering(),
    Annealed(),
    GibbsLangevin(0.1, temperature=8.0),
    GibbsLangevin(0.4, adjust_from=0, temperature=3.0, joint=True),
]
MODELS = [(1, 2, 0), (2, 4, 1), (3, 6, 2), (6, 3, 3)]
N_STATISTICS = sum(2 * N + M + N * M for N, M, _ in MODELS)  # means of v, v², h and v hᵀ
N_CHAINS = 40_000


def label(x) -> str:
    return re.sub(r"<[^>]*>", "...", repr(x)).replace("(", "[").replace(")", "]").replace(" ", "")


@FEW_AND_MANY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["pytorch", "native"])
@pytest.mark.parametrize("sampler", EXACT, ids=label)
@pytest.mark.parametrize(("N", "M", "seed"), MODELS)
def test_exact_samplers_do_not_drift(sampler, N, M, seed, dtype, n_chains):
    """Chains that start at the exact distribution: every moment stays there.

    In float32 the native implementation runs them, where there is a compiler.
    """
    assert sampler.exact
    model = random_model(N, M, seed)
    truth = exact.moments(model)
    v, _ = exact_chains(model, n_chains, seed=seed)  # with h ~ p(h | v) drawn at the start, (v, h) is exact
    for n_steps in (1, 4, 16):
        chains = sample(model.to(dtype), sampler, v0=v, n_steps=n_steps, seed=n_steps)
        assert_standard(z_scores(chains.v, chains.h, truth), n=3 * len(EXACT) * N_STATISTICS)


@pytest.mark.parametrize(
    "sampler", [ParallelTempering(n_replicas=4), ParallelTempering(n_replicas=3, power=1.0)], ids=label
)
def test_parallel_tempering_does_not_drift(sampler):
    """Each replica starts at its own exact distribution, and stays there; swaps do happen."""
    model = random_model(2, 4, 1)
    energy, base = model.freeze(), Base(torch.zeros(2).double(), torch.ones(2).double())
    replicas = []
    for k, beta in enumerate(sampler.betas()):
        tempered = energy.temper(beta, base)
        rung = GRBM(2, 4, dtype=torch.float64)
        with torch.no_grad():
            rung.W.copy_(tempered.gain[:, None] * energy.W)
            rung.b.copy_(tempered.b)
            rung.mu.copy_(tempered.mu)
            rung.log_var.copy_(tempered.var.log())
        replicas.append((rung, exact_chains(rung, N_CHAINS, seed=k)[0]))  # independent
    rng = generator(0, "tempering")
    chains = sampler.start(energy, torch.stack([v for _, v in replicas]), rng)
    for _, chains, info in walk(energy, sampler, chains, 8, rng):
        assert (info.swap_prob.mean(1) > 0.03).all()
    for k, (rung, _) in enumerate(replicas):
        assert_standard(z_scores(chains.state.v[k], chains.state.h[k], exact.moments(rung)), n_cases=4 + 3)


def test_the_ladder_is_the_stated_power():
    expected = [0.0, 0.25**1.5, 0.5**1.5, 0.75**1.5, 1.0]
    assert ParallelTempering(n_replicas=5, power=1.5).betas().tolist() == pytest.approx(expected)


def test_parallel_tempering_finds_the_other_mode_and_gibbs_does_not():
    """From one mode alone, one walk of a single step at a time: only swaps bring the right masses to β = 1."""
    model = two_modes()
    energy, base, rng = model.freeze(), Base(torch.zeros(1).double(), torch.full((1,), 30.0).double()), generator(1)
    sampler = ParallelTempering(base, n_replicas=10)
    chains = sampler.start(energy, torch.full((2000, 1), -6.0).double(), rng)
    for _ in range(200):  # as PCD with one step an update runs it
        for _, chains, _ in walk(energy, sampler, chains, 1, rng):
            pass
    assert_standard(share_z(chains.h.mean(), 0.8, 2000))
    torch.testing.assert_close(chains.h_prob, model(chains.v).detach())
    stuck = sample(model, Gibbs(), v0=torch.full((2000, 1), -6.0), n_steps=200)
    assert stuck.h.mean() < 0.01


@pytest.mark.parametrize("sampler", BIASED, ids=label)
def test_biased_samplers_drift_visibly(sampler):
    """Without adjustment these step sizes are far too coarse, and the same test sees it."""
    assert not sampler.exact
    model = random_model(3, 6, 2)
    v, _ = exact_chains(model, N_CHAINS, seed=2)
    chains = sample(model, sampler, v0=v, n_steps=16, seed=0)
    assert z_scores(chains.v, chains.h, exact.moments(model)).abs().max() > 6


def uncoupled(var=(0.5, 2.0)) -> GRBM:
    """W = 0: v is Gaussian, so the law of every sampler's v can be written down."""
    model = GRBM(len(var), 2, dtype=torch.float64)
    with torch.no_grad():
        model.W.zero_()
        model.mu.fill_(1.0)
        model.log_var.copy_(torch.tensor(var).log())
    return model


@pytest.mark.parametrize("per_unit", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 8.0])
def test_unadjusted_gibbs_langevin_drifts_by_the_amount_theory_says(per_unit, temperature):
    """Var v after t steps is s^2t σ² + n² (1 − s^2t)/(1 − s²) for shrink s and noise n, multiplied out by hand here."""
    model, alpha0, n_inner, n_steps = uncoupled(), 0.3, 4, 3
    v, _ = exact_chains(model, 200_000, seed=1)
    sampler = GibbsLangevin(alpha0, n_inner=n_inner, per_unit=per_unit, temperature=temperature)
    drawn = sample(model, sampler, v0=v, n_steps=n_steps, seed=2).v
    for unit, var in enumerate(model.var.tolist()):
        expected = var
        for _ in range(n_steps):
            for k in range(n_inner):
                alpha = alpha0 * (var if per_unit else 1.25) * 0.5 * (1 + math.cos(math.pi * k / n_inner))
                expected = expected * (1 - alpha / (temperature * var)) ** 2 + 2 * alpha
        # the standard error of a variance over n draws is var sqrt(2/n): 0.32 %
        assert_standard((drawn[:, unit].var().item() / expected - 1) / math.sqrt(2 / 200_000), n_cases=2 * 4)


@pytest.mark.parametrize("temperature", [1.0, 8.0])
def test_unadjusted_langevin_drifts_by_the_amount_theory_says(temperature):
    model, alpha0, n_steps = uncoupled(), 0.3, 5
    v, _ = exact_chains(model, 200_000, seed=3)
    drawn = sample(model, Langevin(alpha0, temperature=temperature), v0=v, n_steps=n_steps, seed=4).v
    for unit, var in enumerate(model.var.tolist()):
        expected = var
        for t in range(n_steps):
            alpha = alpha0 * 1.25 * 0.5 * (1 + math.cos(math.pi * t / n_steps))
            expected = expected * (1 - alpha / (temperature * var)) ** 2 + 2 * alpha
        assert_standard((drawn[:, unit].var().item() / expected - 1) / math.sqrt(2 / 200_000), n_cases=2 * 2)


def test_the_two_dynamics_are_told_apart():
    """At temperature T, v | h relaxes to variance T σ² in the limit of small steps (here within 2 %)."""
    model = uncoupled()
    for temperature in (1.0, 16.0):
        # α/(Tσ²) = 0.02 at most, so the step size adds 1 %; 400 steps of ten forget the start
        sampler = GibbsLangevin(0.02 * temperature, temperature=temperature, per_unit=True)
        drawn = sample(model, sampler, v0=torch.zeros(40_000, 2), n_steps=100, seed=0).v
        torch.testing.assert_close(drawn.var(0), temperature * model.var.detach(), rtol=0.04, atol=0)


def k_step_loop(v, mean, var, step_sizes, noise, temperature=1.0):
    """K Langevin steps one by one (Alg. 2, lines 4-6), with ``noise`` (K, C, N)."""
    for alpha, xi in zip(step_sizes.to(v), noise, strict=True):
        v = v - alpha * (v - mean) / (temperature * var) + (2 * alpha).sqrt() * xi
    return v


@pytest.mark.parametrize("temperature", [1.0, 5.0])
@pytest.mark.parametrize("n_inner", [1, 2, 10])
def test_the_collapsed_inner_loop_is_the_loop(n_inner, temperature):
    """Fed the same noise, the K steps and their collapsed form agree; so do Eq. 11's own coefficients."""
    rng = generator(0, "collapse")
    var = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)
    v, mean = (torch.randn(50, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    noise = torch.randn(n_inner, 50, 3, generator=rng, dtype=torch.float64)
    alphas = 0.2 * cosine_steps(n_inner)[:, None].expand(n_inner, 3)
    factors = 1 - alphas / (temperature * var)
    betas = torch.stack([factors[k + 1 :].prod(0) for k in range(n_inner)])  # β_k, k = 1..K in the paper
    moves = k_step_moves(var, alphas, temperature)
    shrink, noise_std = moves.shrink[0], moves.noise_std[0]
    torch.testing.assert_close(shrink, factors.prod(0))
    torch.testing.assert_close(noise_std**2, (2 * alphas * betas**2).sum(0))
    a = (betas * alphas).sum(0) / (temperature * var)
    collapsed_noise = (betas * (2 * alphas).sqrt() * noise.transpose(0, 1)).sum(1)
    torch.testing.assert_close(a, 1 - shrink)  # it telescopes
    collapsed = visible_update(v, mean, shrink, noise_std, collapsed_noise / noise_std)
    stepwise = k_step_loop(v, mean, var, alphas, noise, temperature)
    torch.testing.assert_close(collapsed, stepwise, rtol=1e-5, atol=1e-5)


def test_the_collapsed_inner_loop_has_the_loops_distribution():
    """Mean and deviation over 100,000 chains, against fresh draws of the loop."""
    rng = generator(1, "collapse")
    var, alphas = torch.tensor([0.4, 1.5]).double(), 0.3 * cosine_steps(5)[:, None].expand(5, 2)
    v, mean = torch.full((100_000, 2), 2.0).double(), torch.full((100_000, 2), -1.0).double()
    stepwise = k_step_loop(v, mean, var, alphas, torch.randn(5, 100_000, 2, generator=rng, dtype=torch.float64))
    moves = k_step_moves(var, alphas)
    for unit in range(2):
        std = moves.noise_std[0, unit]
        of_mean = (stepwise[:, unit].mean() - (-1 + 3 * moves.shrink[0, unit])) / (std / 100_000**0.5)
        of_std = (stepwise[:, unit].std() / std - 1) * 200_000**0.5
        assert_standard([float(of_mean), float(of_std)], n_cases=2)


def log_normal(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return (-0.5 * (x - mean) ** 2 / var - 0.5 * (2 * math.pi * var).log()).sum(-1)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("temperature", "at"), [(1.0, None), (3.0, None), (3.0, 1.0), (3.0, 2.0)])
def test_gibbs_langevin_accepts_by_equation_12_in_full(temperature, at, joint):
    """The acceptance probability is the ratio of joint densities and of whole proposals, hidden terms included."""
    model = random_model(3, 5, 4)
    energy = model.freeze()
    sampler = GibbsLangevin(0.3, adjust_from=0, n_inner=3, temperature=temperature, accept_temperature=at, joint=joint)
    target = at or temperature
    v, h = exact_chains(model, 500, seed=1)
    start = sampler.start(energy, v, generator(0))._replace(h=h)
    _, info = sampler.bind(energy, 1)(start, 0, generator(7))
    # the same proposal, made by the sampler that never rejects, from the same random numbers
    free = GibbsLangevin(0.3, adjust_from=1, n_inner=3, temperature=temperature)
    proposal, _ = free.bind(energy, 1)(start, 0, generator(7))
    moves = k_step_moves(energy.var, 0.3 * energy.var.mean() * cosine_steps(3)[:, None], temperature)

    def log_p_h(v, h):
        logits = energy.hidden_logits(v)
        return (h * logits - torch.nn.functional.softplus(logits)).sum(-1)

    def log_q(to_v, to_h, from_v, from_h):
        mean = moves.shrink * from_v + (1 - moves.shrink) * energy.visible_mean(from_h)
        return log_normal(to_v, mean, moves.noise_std**2) + log_p_h(to_v, to_h)

    def log_target(v, h):  # v at temperature T, h given v at temperature 1; or both at T
        if joint:
            return -energy.energy(v, h) / target
        return (-energy.energy(v, h) - log_p_h(v, h)) / target + log_p_h(v, h)

    new_v, new_h = proposal.v, proposal.h
    log_ratio = log_target(new_v, new_h) - log_target(v, h)
    log_ratio += log_q(v, h, new_v, new_h) - log_q(new_v, new_h, v, h)
    torch.testing.assert_close(info.accept_prob, log_ratio.clamp_max(0).exp())
    assert 0.05 < info.accept_prob.mean() < 0.95


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["pytorch", "native"])
def test_a_joint_test_at_another_temperature_has_that_joint_distribution(dtype):
    """exp(−E/T) is the machine of b/T and Tσ², whatever the hidden units are proposed by."""
    model, T = random_model(2, 4, 1), 3.0
    hot = model.from_parameters({**model.state_dict(), "b": model.b / T, "log_var": model.log_var + math.log(T)})
    sampler = GibbsLangevin(0.4, adjust_from=0, temperature=T, joint=True)
    assert not sampler.exact
    v, h = exact_chains(hot, N_CHAINS, seed=1)
    energy = model.to(dtype).freeze()
    start = sampler.start(energy, v.to(dtype), generator(0))._replace(h=h.to(dtype))
    if dtype == torch.float64:
        for _, chains, info in walk(energy, sampler, start, 20, generator(1)):
            pass
    else:
        rng = Philox(5)
        moves, stretch = moves_of(sampler, energy, 20), Walk(start.v, 20, given=start)
        walked = engine_for(energy.W, rng).run(energy, moves, stretch, rng)
        chains, info = walked.chains, StepInfo(walked.accept_prob)
    assert 0.2 < info.accept_prob.mean() < 0.9
    assert_standard(z_scores(chains.v, chains.h, exact.moments(hot)), n_cases=2)
    apart = sampler.start(energy, v.to(dtype), generator(0))  # h drawn at temperature 1 is another distribution
    assert z_scores(v, apart.h.double(), exact.moments(hot)).abs().max() > 6


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_langevin_accepts_by_the_papers_ratio(temperature):
    model = random_model(3, 5, 4)
    energy = model.freeze()
    v, _ = exact_chains(model, 500, seed=1)
    start = Langevin(0.8).start(energy, v, generator(0))
    _, info = Langevin(0.8, adjust_from=0, temperature=temperature).bind(energy, 1)(start, 0, generator(7))
    proposal, _ = Langevin(0.8, adjust_from=1, temperature=temperature).bind(energy, 1)(start, 0, generator(7))
    new, alpha, drift = proposal.v, 0.8 * energy.var.mean(), 0.8 * energy.var.mean() / temperature
    log_ratio = (energy.free_energy(v) - energy.free_energy(new)) / temperature
    log_ratio -= (v - new + drift * energy.free_energy_grad(new)).square().sum(-1) / (4 * alpha)
    log_ratio += (new - v + drift * energy.free_energy_grad(v)).square().sum(-1) / (4 * alpha)
    torch.testing.assert_close(info.accept_prob, log_ratio.clamp_max(0).exp())
    assert 0.05 < info.accept_prob.mean() < 0.95


def test_given_uniforms_decide_the_hidden_units():
    logits = torch.tensor([[0.0, math.log(3)]]).double().expand(3, 2)
    uniform = torch.tensor([[0.0, 0.0], [0.499, 0.749], [0.501, 0.751]]).double()
    h, prob = hidden_update(logits, uniform=uniform)
    assert h.tolist() == [[1, 1], [1, 1], [0, 0]]
    torch.testing.assert_close(prob[0], torch.tensor([0.5, 0.75]).double())


def test_moves_that_no_engine_can_run_are_refused():
    """By one sentence, whatever the dtype and so the engine."""

    class Wrong(MoveSampler):
        exact = True

        def __init__(self, change):
            self.change = change

        def moves(self, energy, n_steps):
            return self.change(Moves(torch.zeros_like(energy.var)[None], energy.var.sqrt()[None]))

    for dtype in (torch.float32, torch.float64):
        model = random_model(4, 3, 0, dtype=dtype)
        for change, sentence in (
            (lambda m: m._replace(shrink=0.0), r"shrink of Moves must be a tensor \(T, ..., 4\)"),
            (lambda m: m._replace(noise_std=m.noise_std[0]), "noise_std of Moves must be a tensor"),
            (lambda m: m._replace(shrink=m.shrink[:, :1]), "shrink of Moves must be a tensor"),
            (lambda m: m._replace(shrink=m.shrink.half()), "of type torch.float"),
            (lambda m: m._replace(shrink=m.shrink.repeat(3, 1)), "5 steps needs as many moves or one for all, got 3"),
        ):
            with pytest.raises(ValueError, match=sentence):
                sample(model, Wrong(change), n_chains=2, n_steps=5)
    for lacking in ({"exact": True}, {"bind": lambda self, energy, n_steps: None}):
        with pytest.raises(TypeError, match="abstract"):
            type("Half", (Sampler,), lacking)()


def test_acceptance_has_the_stated_probability_and_nan_is_a_rejection():
    ratio = torch.tensor([0.0, 1.0, math.log(0.3), -math.inf, math.nan]).double().repeat_interleave(50_000)
    decision = accept(ratio, generator(0))
    rates = decision.accepted.view(5, -1).double().mean(1)
    assert rates[[0, 1]].eq(1).all()
    assert rates[[3, 4]].eq(0).all()
    assert_standard(share_z(rates[2], 0.3, 50_000))


def test_the_schedule_starts_full_and_moves_even_for_one_step():
    assert cosine(0, 10) == 1
    assert cosine_steps(1).tolist() == [1.0]
    torch.testing.assert_close(cosine_steps(4), torch.tensor([1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]).double())


def test_adjust_from_leaves_the_first_steps_free():
    model = random_model(2, 3, 5)
    energy, sampler = model.freeze(), Langevin(0.9, adjust_from=3)
    rng = generator(0)
    chains = sampler.start(energy, torch.zeros(2000, 2).double(), rng)
    rates = [info.accept_prob for _, _, info in walk(energy, sampler, chains, 6, rng)]
    assert rates[:3] == [None, None, None]  # nothing could be rejected, so there is no rate to dilute the others
    assert all(rate.mean() < 0.99 for rate in rates[3:5])


@pytest.mark.parametrize("sampler", EXACT + BIASED + OTHERS, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contract(sampler, dtype):
    """Every sampler: shapes, dtype, binary h, determinism, no parameter or global random state touched."""
    model = random_model(4, 3, 6, dtype=dtype)
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    chains = sample(model, sampler, n_chains=8, n_steps=6, seed=1)
    assert chains.v.shape == (8, 4)
    assert chains.h.shape == chains.h_prob.shape == (8, 3)
    assert chains.v.dtype == chains.h.dtype == dtype
    assert ((chains.h == 0) | (chains.h == 1)).all()
    assert torch.isfinite(chains.v).all()
    torch.testing.assert_close(chains.h_prob, model(chains.v).detach())
    again, other = (sample(model, sampler, n_chains=8, n_steps=6, seed=s) for s in (1, 2))
    assert torch.equal(chains.v, again.v)
    assert torch.equal(chains.h, again.h)
    assert not torch.equal(chains.v, other.v)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.equal(state, torch.get_rng_state())
    rng = Blocks(3, 1)  # with which tempered samplers move by native code
    started = sampler.start(model.freeze(), sampler.noise(model.freeze(), 8, rng), rng)
    stepped, info = sampler.bind(model.freeze(), 6)(started, 5, rng)
    assert stepped.v.shape == (8, 4)
    assert stepped.h.shape == stepped.h_prob.shape == (8, 3)
    assert info.accept_prob is None or info.accept_prob.shape == (8,)
    assert info.swap_prob is None or info.swap_prob.shape == (sampler.n_replicas - 1, 8)
    assert (info.swap_prob is not None) == hasattr(sampler, "n_replicas")
    if info.swap_prob is not None:
        started = stepped  # all replicas go on
    v = sampler.persistent(started)
    walked = run_chains(model.freeze(), sampler, v, 6, Blocks(4, 1))
    nothing = run_chains(model.freeze(), sampler, v, 0, Blocks(4, 1))
    assert torch.equal(nothing.chains.v, started.v)
    assert (walked.accept_prob is None) == (walked.accept_rate is None)
    if walked.accept_prob is not None:
        assert walked.accept_prob.shape == (8,)
        assert walked.accept_rate.shape == ()
        assert 0 < walked.accept_rate <= 1
    # taking up again from what persists is possible after any walk
    taken_up = sampler.start(model.freeze(), sampler.persistent(chains), generator(0))
    assert taken_up.v.shape == chains.v.shape


def test_sample_keeps_intermediate_states_and_can_finish_on_the_mean():
    model = random_model(3, 4, 7)
    every = sample(model, Gibbs(), n_chains=5, n_steps=10, keep_every=1, seed=0)
    some = sample(model, Gibbs(), n_chains=5, n_steps=10, keep_at=[1, 4, 10], seed=0)
    for sampler in (Langevin(0.1), GibbsLangevin(0.1)):  # the start too, of a walk whose steps differ
        single = random_model(3, 4, 0, dtype=torch.float32)  # in native code
        walked = sample(single, sampler, n_chains=5, n_steps=10, keep_at=[0, 1, 4, 10], seed=0)
        assert torch.equal(walked.v[1:], sample(single, sampler, n_chains=5, n_steps=10, keep_at=[1, 4, 10], seed=0).v)
    for wrong in ("gibbs", Gibbs):
        with pytest.raises(TypeError, match=r"such as grbm\.Gibbs"):
            sample(model, wrong, n_chains=5)
    assert torch.equal(some.v, every.v[[0, 3, 9]])
    for wrong in ([], [3, 3], [4, 11], [-1, 2]):
        with pytest.raises(ValueError, match="keep_at must rise"):
            sample(model, Gibbs(), n_chains=5, n_steps=10, keep_at=wrong)
    kept = sample(model, Gibbs(), n_chains=5, n_steps=10, burn_in=2, keep_every=4, seed=0)
    assert kept.v.shape == (2, 5, 3)
    last = sample(model, Gibbs(), n_chains=5, n_steps=10, seed=0)
    assert torch.equal(kept.v[-1], last.v)
    mean = sample(model, Gibbs(), n_chains=5, n_steps=10, seed=0, mean=True)
    assert torch.equal(mean.h, last.h)
    torch.testing.assert_close(mean.v, model.visible_mean(last.h).detach())
    start = torch.randn(5, 3, generator=generator(0), dtype=torch.float64)
    assert torch.equal(sample(model, Gibbs(), v0=start, n_steps=0).v, start)


def test_chains_of_a_compiled_model_are_those_of_the_model():
    model = random_model(3, 4, 1)
    a, b = (sample(m, Gibbs(), n_chains=4, n_steps=3, seed=1) for m in (model, torch.compile(model)))
    assert torch.equal(a.v, b.v)


def test_a_sampler_draws_a_number_for_each_chain_as_it_draws_states():
    """Of blocks, one after another, along the chains: the same numbers however many hold them."""
    for rng in (Blocks(0, 2), Blocks(0, 2).philox(6), generator(0)):
        assert normal((6,), torch.zeros(1), rng).shape == uniform((6,), torch.zeros(1), rng).shape == (6,)
    one, whole = uniform((6,), torch.zeros(1), Blocks(0, 2)), uniform((6, 1), torch.zeros(1), Blocks(0, 2))
    assert torch.equal(one, whole[:, 0])
    with pytest.raises(TypeError, match="positional"):
        GibbsLangevin(0.04, 10)


def test_sample_refuses_what_it_cannot_mean():
    model = GRBM(3, 2)
    with pytest.raises(ValueError, match="either n_chains"):
        sample(model, Gibbs())
    with pytest.raises(ValueError, match=r"tensor \(n_chains, 3\), got shape \(4, 2\)"):
        sample(model, Gibbs(), v0=torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"tensor \(n_chains, 3\), got shape \(3,\)"):
        sample(model, Gibbs(), v0=torch.zeros(3))
    with pytest.raises(ValueError, match="got ndarray"):
        sample(model, Gibbs(), v0=np.zeros((4, 3)))
    with pytest.raises(ValueError, match="burn_in"):
        sample(model, Gibbs(), n_chains=2, n_steps=5, burn_in=6)
    with pytest.raises(ValueError, match="keep_every=6"):
        sample(model, Gibbs(), n_chains=2, n_steps=5, keep_every=6)
    with pytest.raises(ValueError, match="n_chains, not v0"):
        sample(model, Annealed(), v0=torch.zeros(4, 3))
    with pytest.raises(ValueError, match="rho"):
        PartialGibbs(1.0)
    with pytest.raises(ValueError, match=r"step_size .* 0\.0"):
        Langevin(step_size=0.0)
    with pytest.raises(ValueError, match="n_inner"):
        GibbsLangevin(n_inner=0)


def test_annealed_chains_estimate_log_z_and_give_modes_their_mass():
    """Gibbs from noise cannot know the masses of two modes, annealing can."""
    model = two_modes()
    truth = exact.moments(model).h.item()
    assert truth == pytest.approx(0.8)
    base = Base(torch.zeros(1).double(), torch.full((1,), 30.0).double())
    runs = [sample(model, Annealed(base), n_chains=2000, n_steps=200, seed=s) for s in range(20)]
    shares_std, log_z_std = 0.0087, 0.0115  # of one run, from 60 others
    shares = torch.tensor([r.h.mean().item() for r in runs])
    log_zs = torch.tensor([float(r.state.log_z) for r in runs])
    for estimate, expected, std in ((shares, truth, shares_std), (log_zs, exact.log_z(model), log_z_std)):
        assert 0.5 * std < estimate.std() < 1.5 * std  # 20 draws know a deviation to a sixth
        assert abs(estimate.mean() - expected) < z_bound(2) * std / 20**0.5 + 1e-3
    by_gibbs = sample(model, Gibbs(), n_chains=2000, n_steps=200, seed=0).h.mean().item()
    assert abs(by_gibbs - truth) > 0.1
