"""Ladders and trajectories: they leave the exact distribution alone, adapt to equal swap rates, and find all modes."""

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from grbm import (
    GRBM,
    PCD,
    Base,
    FitOptions,
    Gibbs,
    ParallelTempering,
    PartialGibbs,
    TrainState,
    TrajectoryTempering,
    fit,
    runs,
    sample,
    walk,
)
from grbm.core.randomness import Blocks, generator
from grbm.data import MIXTURES
from grbm.evaluate import exact
from grbm.fitting.recipe import SamplerConfig
from grbm.learning.objectives import Adaptation
from grbm.runs.folder import read_trajectory
from grbm.runs.presets import PRESETS
from grbm.runs.sampling import tuned_sampler
from grbm.runs.training import train as train_run
from grbm.samplers import run_chains
from grbm.samplers.tempering import even_out
from grbm.samplers.trajectory import swap_rate
from tests.helpers import WIDE, assert_standard, exact_chains, random_model, share_z, two_modes, z_bound, z_scores

N_CHAINS = 40_000


def tempered_mixture():
    """The preset isotropic with a ladder in place of its own chains."""
    config = PRESETS["isotropic"].config
    return replace(
        config,
        sampler=SamplerConfig("parallel-tempering"),
        objective=replace(config.objective, n_steps=10),
        train=replace(config.train, n_updates=4000),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["pytorch", "native"])
@pytest.mark.parametrize("sampler", [Gibbs(), PartialGibbs(0.6)], ids=["gibbs", "partial"])
def test_trajectory_tempering_does_not_drift(sampler, dtype):
    """Each replica starts at its own model's exact distribution, and stays there; swaps happen between all of them.

    In float32 the native implementation runs the chains, with other random numbers.
    """
    models = [random_model(2, 4, 1, strength=strength) for strength in (0.3, 0.7, 1.0)]
    base = Base(torch.zeros(2).double(), torch.full((2,), 2.0).double())
    energies = [model.to(dtype).freeze() for model in models]
    tempering = TrajectoryTempering(tuple(energies[:-1]), base, sampler)
    rng = Blocks(3, 1)
    replicas = [exact_chains(m.double(), N_CHAINS, seed=k)[0].to(dtype) for k, m in enumerate(models)]  # independent
    start = torch.stack([base.sample((N_CHAINS,), generator(1)).to(dtype), *replicas])
    chains = tempering.start(energies[-1], start, rng)
    for _, chains, info in walk(energies[-1], tempering, chains, 6, rng):
        assert (info.swap_prob.mean(1) > 0.1).all()
    for model, energy, v in zip(models, energies, chains.state[1:], strict=True):
        h = Gibbs().start(energy, v, rng).h  # hidden units follow from v
        assert_standard(z_scores(v, h, exact.moments(model.double())), n_cases=3 * 4)  # models, cases
    assert torch.equal(chains.v, chains.state[-1])
    scale = z_bound(4 * 4) * 2**0.5 / N_CHAINS**0.5  # of means and, relatively, of variances of the base
    assert (chains.state[0].double().mean(0).abs() < scale).all()
    assert ((chains.state[0].double().var(0) / 2 - 1).abs() < scale).all()


def test_swaps_along_a_trajectory_use_the_stated_ratio():
    """For three given states, by hand: the probability of each swap, the odd one after the even one."""
    first, last = random_model(2, 3, 5), random_model(2, 3, 6)
    base = Base(torch.tensor([0.5, 0.0]).double(), torch.tensor([1.0, 3.0]).double())
    tempering = TrajectoryTempering((first.freeze(),), base)
    v = torch.tensor([[[-0.6, 0.9]], [[-0.7, 0.5]], [[0.3, -0.8]]]).double().repeat(1, 4000, 1)
    energies = [lambda x: 0.5 * ((x - base.mean) ** 2 / base.var).sum(-1), first.free_energy, last.free_energy]
    chains = tempering.start(last.freeze(), v, generator(0))
    _, info = tempering.bind(last.freeze(), 1)(chains, 0, generator(1))

    def ratio(r, a, b):
        return torch.exp(energies[r](a) + energies[r + 1](b) - energies[r](b) - energies[r + 1](a)).clamp(max=1)

    with torch.no_grad():
        even = ratio(0, v[0, 0], v[1, 0])
        odd = ratio(1, v[1, 0], v[2, 0]), ratio(1, v[0, 0], v[2, 0])  # without and with the even swap
    torch.testing.assert_close(info.swap_prob[0], even.expand(4000))
    swapped = (info.swap_prob[1] - odd[1]).abs() < 1e-12
    assert ((info.swap_prob[1] - odd[0]).abs() < 1e-12).logical_or(swapped).all()
    assert_standard(share_z(swapped.double().mean(), float(even), 4000))
    assert 0.05 < even < 0.95


def test_swaps_along_a_ladder_use_the_energies_of_its_rungs():
    """min(1, exp(E_r(x_r) + E_s(x_s) − E_r(x_s) − E_s(x_r))) for neighbours r, s and joint states x, rung by rung."""
    energy = random_model(3, 4, 2).freeze()
    base = Base(torch.tensor([0.5, 0.0, -1.0]).double(), torch.tensor([1.0, 3.0, 0.5]).double())
    sampler = ParallelTempering(base, ladder=(0.0, 0.3, 1.0))
    rng = generator(3, "states")
    v = base.sample((3, 500), rng)
    chains = sampler.start(energy, v, rng)
    x = chains.state
    _, info = sampler.bind(energy, 1)(chains, 0, rng)
    low, high = (energy.temper(torch.tensor(beta), base) for beta in (0.0, 0.3))
    log_ratio = low.energy(x.v[0], x.h[0]) + high.energy(x.v[1], x.h[1])
    log_ratio -= low.energy(x.v[1], x.h[1]) + high.energy(x.v[0], x.h[0])
    torch.testing.assert_close(info.swap_prob[0], log_ratio.clamp_max(0).exp())
    assert 0.05 < info.swap_prob[0].mean() < 0.95


def test_a_ladder_is_evened_out_by_its_rejections():
    """Rejections of .8, .1 and .1: a third of the total lies at 1/3 of the total over .8 of the first interval."""
    betas = torch.tensor([0.0, 0.3, 0.6, 1.0]).double()
    rates = torch.tensor([0.2, 0.9, 0.9])
    expected = torch.tensor([0.0, 0.3 * (1 / 3) / 0.8, 0.3 * (2 / 3) / 0.8, 1.0]).double()
    torch.testing.assert_close(even_out(betas, rates, 1.0), expected)
    torch.testing.assert_close(even_out(betas, rates, 0.25), 0.75 * betas + 0.25 * expected)
    assert even_out(betas, torch.ones(3), 1.0).diff().min() > 0.2  # where all is accepted nothing collapses
    rarely = even_out(torch.tensor([0.0, 0.3, 0.6, 1.0]).double(), torch.tensor([1.0, 0.5, 1.0]), 1.0)
    torch.testing.assert_close(rarely[1:3], torch.tensor([0.3998, 0.5002]).double())  # of rejections .001, .5, .001
    longer = even_out(betas, rates, 1.0, 7)
    assert len(longer) == 7
    torch.testing.assert_close(longer[[2, 4]], expected[1:3])


def test_a_tuned_ladder_swaps_half_of_the_time_everywhere():
    """From a ladder much too short and badly spaced; 1,000 chains, and 0.07 for what the pilots did not find out."""
    model = random_model(12, 12, 3, strength=2.0).float()
    energy = model.freeze()
    sampler = ParallelTempering(n_replicas=3, power=4.0).tuned(energy, seed=1)
    assert sampler == ParallelTempering(n_replicas=3, power=4.0).tuned(energy, seed=1)
    assert sampler.n_replicas > 4
    rng = Blocks(0, 1)
    v = sampler.persistent(run_chains(energy, sampler, sampler.noise(energy, 1000, rng), 300, rng).chains)
    walked = run_chains(energy, sampler, v, 40, rng)
    assert walked.swaps is not None
    rate = walked.swaps.rate()
    assert len(rate) == sampler.n_replicas - 1
    assert (rate - 0.5).abs().max() < 0.07
    fixed = ParallelTempering(n_replicas=3, adapt=0.0)
    assert fixed.tuned(energy) is fixed


def test_learning_evens_out_the_ladder_and_remembers_it():
    """After 150 updates on separated modes no pair of neighbours swaps much less often than the mean."""
    mixture = MIXTURES["isotropic"]
    data = mixture.sample(1000, seed=0, stratified=True).float()
    base = Base.fit(data)

    def least(adapt: float) -> tuple[float, TrainState]:
        model = GRBM(2, 32)
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
        objective = PCD(ParallelTempering(base, 10, power=0.5, adapt=adapt), 5, 100)
        rates = [m.swap_rate for m in fit(state, data, objective, FitOptions(n_updates=150))]
        late = torch.stack(rates[-30:]).mean(0)
        return float(late.min() / late.mean()), state

    adapted, state = least(0.05)
    fixed, never = least(0.0)
    assert adapted > 0.95
    assert fixed < 0.85
    assert never.adaptation.state_dict == {}
    ladder = state.adaptation.state_dict["ladder"]
    assert ladder[0] == 0
    assert ladder[-1] == 1
    assert (ladder.diff() > 0).all()
    assert ladder.shape == (10,)


@pytest.mark.whole
def test_a_trajectory_grows_where_swaps_become_rare_and_reaches_the_other_mode():
    """Learned from two modes 12 deviations apart: the models saved let chains from one mode alone find both.

    2,000 chains after 200 steps; their standard error is 0.009, and the pairs' swaps make them dependent.
    """
    data = exact_chains(two_modes(), 2000, seed=0)[0].float()
    model = GRBM(1, 4)
    state = TrainState(model, torch.optim.Adam(model.parameters(), lr=0.05))
    sampler = TrajectoryTempering(base=Base.fit(data))
    for _ in fit(state, data, PCD(sampler, 5, 200, probabilities=True), FitOptions(n_updates=400, batch_size=500)):
        pass
    saved = sampler.with_state(state.adaptation.state_dict)
    assert 2 <= len(saved.models) < 30
    energy = model.freeze()
    rng = Blocks(0, 1)
    start = torch.full((2000, 1), -6.0)
    walked = run_chains(energy, saved, start, 200, rng)
    assert walked.swaps is not None
    assert walked.swaps.rate().min() > 0.05
    v, _ = exact_chains(model.double(), 200_000, seed=1)
    truth = float((v > 0).double().mean())
    assert 0.7 < truth < 0.9
    assert float((walked.chains.v > 0).double().mean()) == pytest.approx(truth, abs=0.04)
    stuck = sample(model.float(), Gibbs(), v0=start, n_steps=200)
    assert float((stuck.v > 0).double().mean()) < 0.1


@pytest.mark.whole
def test_a_trajectory_needs_no_more_models_than_swaps_ask_for():
    """Of 40 models from W = 0 on, few are kept, and neighbours among those swap as often as was asked."""
    model = random_model(6, 6, 2, strength=1.5).float()
    energies = []
    for share in torch.linspace(0.025, 1, 40)[:-1].tolist():
        early = GRBM(6, 6)
        early.load_state_dict({k: share * p for k, p in model.state_dict().items()})
        energies.append(early.freeze())
    sampler = TrajectoryTempering(tuple(energies), save_below=0.4).tuned(model.freeze())
    assert 1 <= len(sampler.models) < 15
    rng = Blocks(0, 1)
    walked = run_chains(model.freeze(), sampler, sampler.noise(model.freeze(), 2000, rng), 50, rng)
    assert walked.swaps is not None
    assert walked.swaps.rate().min() > 0.3


def test_the_base_of_a_trajectory_is_drawn_afresh_at_each_step():
    base = Base(torch.full((2,), 5.0), torch.full((2,), 0.01))
    model = GRBM(2, 3)
    sampler = TrajectoryTempering(base=base)
    rng = Blocks(0, 1)
    chains = sampler.start(model.freeze(), torch.zeros(50, 2), rng)
    chains, _ = sampler.bind(model.freeze(), 1)(chains, 0, rng)
    assert (chains.state[0] - 5).abs().max() < 0.5


def test_every_other_model_goes_where_more_are_saved_than_allowed():
    """Models 0 to 4 and their chains: 1, 3 and the new one stay, each with its own chains."""
    energies = [random_model(3, 4, seed).float().freeze() for seed in range(6)]

    def which(sampler: TrajectoryTempering) -> list[int]:
        return [next(k for k, energy in enumerate(energies) if energy is model) for model in sampler.models]

    cold, warm = torch.tensor([0.5] * 5 + [0.0]), torch.full((6,), 0.9)
    full = TrajectoryTempering(tuple(energies[:5]), most=5)
    assert full.adapted(energies[5], warm) is full
    thinned = full.adapted(energies[5], cold)
    assert which(thinned) == [1, 3, 5]
    v = torch.arange(7.0)[:, None, None].expand(7, 2, 3)  # the base's, those of five models, the machine's
    chains = thinned.start(energies[5], v, Blocks(0, 1))
    assert chains.state[:, 0, 0].tolist() == [0, 2, 4, 6, 6]
    grown = replace(full, most=6).adapted(energies[5], cold)
    assert which(grown) == [0, 1, 2, 3, 4, 5]


@pytest.mark.whole
def test_trajectory_tempering_keeps_swapping_after_it_has_thinned():
    """A machine that moves with each update saves more than eight models, and its last pair still swaps."""
    data = exact.sample(random_model(2, 6, 1), 500, seed=0)[0].float()
    model = GRBM(2, 6, seed=0)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.3))
    objective = PCD(TrajectoryTempering(save_below=0.9, most=8), 2, n_chains=100)
    sizes, last = [], []
    for metrics in fit(state, data, objective, FitOptions(400, 100)):
        assert metrics.swap_rate is not None
        sizes.append(len(metrics.swap_rate) - 1)
        last.append(float(metrics.swap_rate[-1]))
    assert max(sizes) == 8
    assert sum(after < before for before, after in pairwise(sizes)) >= 2
    assert statistics.mean(last[-50:]) > 0.8


def test_a_far_base_is_bridged_by_tempered_models():
    """Saved modes 12 deviations apart: a Gaussian fitted to both hardly swaps with them, the ladder between does."""
    energy = two_modes().float().freeze()
    sampler = TrajectoryTempering(base=Base(WIDE.mean.float(), WIDE.var.float()))
    tuned = sampler.tuned(energy)
    assert len(tuned.models) >= 1
    rng = Blocks(0, 1)
    walked = run_chains(energy, tuned, tuned.noise(energy, 1000, rng), 50, rng)
    assert walked.swaps is not None
    assert walked.swaps.rate().min() > 0.3


@pytest.mark.parametrize("sampler", [ParallelTempering(n_replicas=3), TrajectoryTempering(save_below=0.9)])
def test_restarted_chains_and_growing_ladders_go_together(sampler):
    model = GRBM(3, 4)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = 3 + torch.randn(100, 3, generator=generator(0))
    list(fit(state, data, PCD(sampler, 2, 20, restart=0.3), FitOptions(n_updates=20, batch_size=20)))
    replicas = sampler.with_state(state.adaptation.state_dict).n_replicas
    assert len(state.persistent) in (replicas, replicas - 1)  # the newest is added when the next update begins
    assert replicas > 2


def test_what_one_sampler_has_adapted_is_applied_to_each_of_its_kind():
    """Whether it was made before, is another of more chains' steps, or there were no swaps to learn from."""
    one, other = (
        PCD(ParallelTempering(n_replicas=3, sampler=inner, adapt=0.5), 2, 20) for inner in (Gibbs(), PartialGibbs())
    )
    adaptation, energy = Adaptation(), GRBM(3, 4).freeze()
    adaptation.learn(one, energy, None)
    assert adaptation.state_dict == {}
    adaptation.learn(one, energy, torch.tensor([0.1, 0.9]))
    ladder = adaptation.state_dict["ladder"]
    for objective in (one, other, one):
        applied = adaptation.applied(objective).sampler
        assert applied.sampler == objective.sampler.sampler
        assert torch.equal(applied.betas(), ladder)
    assert adaptation.applied(one).sampler is adaptation.applied(one).sampler, "made once"


def test_an_objective_that_cannot_be_given_another_sampler_does_not_adapt():
    class Own:
        sampler, probabilities = ParallelTempering(n_replicas=3), False

        def negative(self, energy, v_data, persistent, rng):
            return PCD(self.sampler, 2, 20).negative(energy, v_data, persistent, rng)

    model = GRBM(3, 4)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    metrics = list(
        fit(state, torch.randn(100, 3, generator=generator(0)), Own(), FitOptions(n_updates=5, batch_size=20))
    )
    assert state.adaptation.state_dict == {}
    assert metrics[-1].swap_rate.shape == (2,)


def test_a_runs_sampler_is_tuned_to_its_model(tmp_path):
    config = tempered_mixture()
    config = replace(config, train=replace(config.train, n_updates=30))
    train_run(config, tmp_path / "run")
    trained = runs.read(tmp_path / "run")
    sampler = tuned_sampler(trained, config.sampler, trained.model)
    assert sampler.betas().tolist() != ParallelTempering().betas().tolist()
    assert sampler == ParallelTempering(trained.frame.base).tuned(trained.model.freeze())
    least = [m["swap_rate_min"] for m in trained.metrics]
    assert all(0 < x < 1 for x in least)
    assert trained.metrics[-1]["replicas"] == 14


def test_bad_ladders_are_refused():
    for ladder in ((0.0, 0.5), (0.1, 1.0), (0.0, 0.6, 0.5, 1.0), (1.0,)):
        with pytest.raises(ValueError, match="rise from 0 to 1"):
            ParallelTempering(ladder=ladder)
    with pytest.raises(ValueError, match="adapt"):
        ParallelTempering(adapt=1.5)
    with pytest.raises(ValueError, match="save_below"):
        TrajectoryTempering(save_below=1.0)
    with pytest.raises(ValueError, match="most must be at least 3"):
        TrajectoryTempering(most=2)


def test_a_run_keeps_models_along_training_and_samples_with_them(tmp_path):
    config = tempered_mixture()
    config = replace(
        config,
        train=replace(config.train, n_updates=60),
        checkpoint=replace(config.checkpoint, trajectory=0.4),
        sampling=replace(
            config.sampling, sampler=replace(config.sampling.sampler, name="trajectory-tempering", power=None)
        ),
    )
    train_run(config, tmp_path / "run")
    saved = read_trajectory(tmp_path / "run")
    assert 3 <= len(saved) <= 30
    for (old, v_old), (new, v_new) in pairwise(saved):  # each was kept because swaps had become rarer than asked
        with torch.no_grad():
            assert swap_rate(old.free_energy, new.free_energy, v_old, v_new) < 0.4
    run_ = runs.read(tmp_path / "run")
    sampler = tuned_sampler(run_, config.sampling.sampler, run_.model)
    assert isinstance(sampler, TrajectoryTempering)
    assert sampler.n_replicas >= 3


@pytest.mark.slow
def test_tempering_visits_all_modes_of_the_trained_mixture_from_one_start_where_gibbs_does_not(tmp_path):
    """One chain each, 10,000 steps from the middle of one mode, every tenth state kept; 16 such chains per sampler.

    The mean share error of a chain is what 1,000 states give that are independent after about ten steps (0.02), and
    an order of magnitude more for Gibbs, most of whose chains miss a mode altogether.
    """
    config = tempered_mixture()
    config = replace(config, checkpoint=replace(config.checkpoint, trajectory=0.4))
    train_run(config, tmp_path / "run")
    trained = runs.read(tmp_path / "run")
    mixture, model = MIXTURES["isotropic"], trained.model
    energy, base = model.freeze(), trained.frame.base
    start = mixture.means[1].float().expand(16, 2)

    def shares(sampler) -> torch.Tensor:
        v = sample(model, sampler, v0=start, n_steps=10_000, keep_every=10, seed=2).v
        nearest = (v[:, :, None] - mixture.means.to(v)).norm(dim=-1).argmin(-1)
        return torch.stack([(nearest == k).double().mean(0) for k in range(3)], -1)  # (chains, modes)

    tempered = {
        "pt": ParallelTempering(base).tuned(energy),
        "ptt": TrajectoryTempering(tuple(m.freeze() for m, _ in read_trajectory(tmp_path / "run"))).tuned(energy),
    }
    truth = mixture.weights.double()
    gibbs = (shares(Gibbs()) - truth).abs().max(1).values
    print("gibbs", gibbs.sort().values)
    for name, sampler in tempered.items():
        found = shares(sampler)
        errors = (found - truth).abs().max(1).values
        print(name, sampler.n_replicas, errors.sort().values, found.mean(0))
        assert (found > 0.1).all()
        assert errors.median() < 0.08
        assert (found.mean(0) - truth).abs().max() < 0.03
    assert gibbs.median() > 0.3
