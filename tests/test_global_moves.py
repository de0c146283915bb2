"""The reference: density, draws, jumps that leave the model alone, and log Z bridged from it or along a ladder."""

import copy
import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch

from grbm import (
    GRBM,
    PCD,
    Base,
    FitOptions,
    GaussianBernoulliRBM,
    Gibbs,
    GibbsLangevin,
    GlobalMoves,
    ParallelTempering,
    PartialGibbs,
    Reference,
    TrainState,
    fit,
)
from grbm.core import memory
from grbm.core.errors import DivergenceError
from grbm.core.randomness import Blocks, Philox, generator
from grbm.data.frame import Frame
from grbm.data.tables import measure
from grbm.data.whitening import whiten
from grbm.evaluate import bridging, exact, watching
from grbm.evaluate.ais import known
from grbm.evaluate.bridging import from_reference, ratio
from grbm.evaluate.watching import HeldOut, Nats, Watch, gaussian_log_prob, is_gaussian_enough, log_z_of, score
from grbm.fitting.callbacks import Call, EarlyStopping, KeepBest, Progress
from grbm.fitting.learn import learn, one_gaussian
from grbm.fitting.recipe import Facts, Recipe, changed, resolve
from grbm.fitting.start import begin, held_out
from grbm.model import initialise
from grbm.model.initialise import anchored_, gaussian_, matched_
from grbm.samplers import collapsed, global_moves, run_chains
from grbm.samplers.chains import StepInfo, Walk, gather, start_chains
from grbm.samplers.engines import compiled
from grbm.samplers.engines.definition import Engine
from tests.helpers import assert_standard, exact_chains, mean_z, random_model, share_z, z_scores


def reference(dtype=torch.float64) -> Reference:
    """Two overlapping Gaussians in 2-D with full covariances."""
    factors = torch.tensor([[[1.2, 0.0], [0.5, 0.8]], [[2.0, 0.0], [-0.7, 1.5]]])
    q = Reference(torch.tensor([0.3, 0.7]), torch.tensor([[1.0, -1.0], [-0.5, 0.5]]), factors)
    return q.to(torch.zeros(1, dtype=dtype))


def test_the_reference_is_its_mixture():
    """Its density against torch.distributions, its draws' moments against the exact ones."""
    q, n = reference(), 200_000
    v = q.sample(n, Blocks(3, 1))
    parts = torch.distributions.MultivariateNormal(q.means, scale_tril=q.factors)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(q.weights), parts)
    torch.testing.assert_close(q.log_prob(v[:50]), mixture.log_prob(v[:50]))
    mean = (q.weights[:, None] * q.means).sum(0)
    product = (q.weights * ((q.factors @ q.factors.mT)[:, 0, 1] + q.means[:, 0] * q.means[:, 1])).sum()
    assert_standard(mean_z(torch.cat([v, v.prod(1, keepdim=True)], 1), torch.cat([mean, product[None]])))
    wide = q.widened(Base(torch.zeros(2), torch.ones(2)), share=0.25)
    assert float(wide.weights[-1]) == 0.25
    assert float(wide.weights.sum()) == pytest.approx(1)
    normal = torch.distributions.MultivariateNormal(torch.zeros(2).double(), 1.7 * torch.eye(2).double())
    expected = torch.logaddexp(math.log(0.75) + q.log_prob(v[:9]), math.log(0.25) + normal.log_prob(v[:9]))
    torch.testing.assert_close(wide.log_prob(v[:9]), expected)


@pytest.mark.parametrize("n_visible", [1, 5, 70])
def test_independent_units_are_drawn_and_scored_by_the_same_numbers(n_visible):
    """Without the products with all zeros of the factors; one number off the diagonal, and there is no such way."""
    rng = generator(0, "factors")
    widths = torch.rand(3, n_visible, generator=rng) + 0.1
    parts = torch.tensor([0.2, 0.5, 0.3]), torch.randn(3, n_visible, generator=rng), widths.diag_embed()
    quick, whole = Reference(*parts), Reference(*parts)
    vars(whole)["is_diagonal"] = False
    assert quick.is_diagonal
    v = quick.sample(300, Blocks(3, 1))
    assert torch.equal(v, whole.sample(300, Blocks(3, 1)))
    assert torch.equal(quick.log_prob(v), whole.log_prob(v))
    if n_visible > 1:
        parts[2][1, 1, 0] = 1e-3
        assert not Reference(*parts).is_diagonal


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["pytorch", "native"])
def test_global_moves_do_not_drift(dtype):
    """40,000 chains at the exact distribution stay there, with a reference that is far off."""
    model = random_model(2, 4, 1)
    truth = exact.moments(model)
    v = exact_chains(model, 40_000, 0)[0].to(dtype)
    energy = model.to(dtype).freeze()
    walked = run_chains(energy, GlobalMoves(reference(dtype), 2), v, 6, Blocks(4, 1))
    assert_standard(z_scores(walked.chains.v, walked.chains.h, truth), n_cases=2)
    assert walked.accept_rate is not None
    assert 0.05 < float(walked.accept_rate) < 0.95


SIZES = [(1, 1, 1, 1), (70, 2, 5, 3), (130, 6, 73, 4), (65, 70, 130, 2), (65, 64, 64, 2), (3, 128, 128, 2)]


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler")
@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize(("n_chains", "N", "M", "K"), SIZES)
def test_a_native_walk_is_the_definition_chain_by_chain(n_chains, N, M, K, diagonal, monkeypatch):
    """From the same counter-based numbers, step by step: accepted and rejected chains, to the rounding of sums."""
    monkeypatch.setattr(memory, "empty", lambda *shape: torch.full(shape, torch.nan))
    rng = generator(M, "model")
    model = random_model(N, M, 1, strength=0.3 / max(N, M) ** 0.5, dtype=torch.float32)
    energy = model.freeze()
    near = energy.var.sqrt().diag() + 0.02 * torch.randn(K, N, N, generator=rng).tril() * (not diagonal)
    means = energy.visible_mean(0.5 * torch.ones(M)) + 0.2 * torch.randn(K, N, generator=rng)
    q = Reference(torch.rand(K, generator=rng).softmax(0), means, near)
    local = {2: GibbsLangevin(0.3), 64: PartialGibbs(0.6), 128: PartialGibbs(0.6)}.get(N, Gibbs())
    sampler, v = GlobalMoves(q, 3, local), torch.randn(n_chains, N, generator=rng)
    given = sampler.start(energy, v, Philox(5))
    for walk in (Walk(v, 3, -1), Walk(v, 2, 1, probabilities=True), Walk(v, 0, -1), Walk(v, 2, given=given)):
        numbers = Philox(7, 3, 2), Philox(7, 3, 2)
        native = sampler.at_once(energy, walk, numbers[0])
        assert native is not None
        begin = walk.given or start_chains(energy, v, numbers[1])
        with pytest.MonkeyPatch.context() as patch:
            for module in (global_moves, collapsed):
                patch.setattr(module, "engine_for", lambda *_: Engine())
            defined = gather(energy, sampler.bind(energy, walk.n_steps), begin, walk, numbers[1])
        assert numbers[0].draw == numbers[1].draw
        close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
        for name in ("v", "h", "h_prob"):
            close(getattr(native.chains, name), getattr(defined.chains, name))
        close(native.accept_prob, defined.accept_prob)
        close(native.accept_rate, defined.accept_rate)
        assert (native.sums is None) == (defined.sums is None)
        if native.sums is not None:
            assert native.sums.count == defined.sums.count
            close(native.sums.mean(), defined.sums.mean())
        assert n_chains < 64 or not walk.n_steps or 0.02 < float(native.accept_rate) < 0.98


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler")
def test_a_native_walk_is_summed_by_blocks(monkeypatch):
    """Blocks of 100 chains, more than stand side by side: as the same chains in one walk, on three threads."""
    energy, v = random_model(3, 9, 1, dtype=torch.float32).freeze(), torch.randn(400, 3, generator=generator(0, "v"))
    sampler = GlobalMoves(Reference(torch.ones(1), torch.zeros(1, 3), torch.eye(3)[None]), 2)
    whole = run_chains(energy, sampler, v, 3, Blocks(1, 1), burn_in=0)
    monkeypatch.setattr(compiled, "n_threads", lambda: 3)
    blocks = run_chains(energy, sampler, v, 3, Blocks(1, 4), burn_in=0)
    assert torch.equal(run_chains(energy, sampler, v, 3, Blocks(1, 4)).chains.v, blocks.chains.v)
    assert torch.equal(whole.chains.v, blocks.chains.v)
    assert len(blocks.sums.sums.v) == 4
    torch.testing.assert_close(whole.sums.mean(), blocks.sums.mean(), rtol=1e-5, atol=1e-5)
    part = run_chains(energy, sampler, v[200:300], 3, Blocks(1, 4, range(2, 3)), burn_in=0)
    assert torch.equal(part.chains.v, blocks.chains.v[200:300])
    assert torch.equal(part.sums.sums.vh[0], blocks.sums.sums.vh[2])
    assert float(part.accept_rate) == pytest.approx(float(blocks.accept_prob[200:300].mean()))


def test_a_reference_of_other_sizes_is_refused():
    with pytest.raises(ValueError, match=r"means of shape \(1, 2\) go with weights \(1,\).*got \(3,\)"):
        Reference(torch.ones(3), torch.zeros(1, 2), torch.eye(2)[None])
    energy, q = (
        random_model(5, 3, 0, dtype=torch.float32).freeze(),
        Reference(*(torch.ones(1, *[1] * k) for k in range(3))),
    )
    for model in (energy, energy.to(torch.float64)):
        with pytest.raises((ValueError, RuntimeError)):
            run_chains(model, GlobalMoves(q), torch.zeros(4, 5).to(model.W), 1, Blocks(0, 1))


def test_chains_of_a_sampler_that_steps_otherwise_step_so():
    class Still(GlobalMoves):
        def bind(self, energy, n_steps):
            return lambda chains, t, rng: (chains, StepInfo())

    energy, v = random_model(2, 3, 0, dtype=torch.float32).freeze(), torch.ones(4, 2)
    assert torch.equal(run_chains(energy, Still(reference(torch.float32)), v, 3, Blocks(0, 1)).chains.v, v)


def test_jumps_cross_where_gibbs_steps_do_not():
    """Modes 30 deviations apart, masses 0.2 and 0.8: from one of them, 40 steps give both their shares."""
    model = GRBM(1, 1, dtype=torch.float64)
    with torch.no_grad():
        model.W.fill_(30.0)
        model.mu.fill_(-15.0)
        model.b.fill_(math.log(4))
    q = Reference(torch.full((2,), 0.5), torch.tensor([[-15.0], [15.0]]), torch.full((2, 1, 1), 1.3))
    walked = run_chains(model.freeze(), GlobalMoves(q, 1), torch.full((4000, 1), -15.0).double(), 40, Blocks(0, 1))
    share = float((walked.chains.v > 0).double().mean())
    assert_standard(share_z(share, 0.8, 4000))


def test_a_ratio_and_its_jackknife():
    """Works of known answer (Crooks): the estimate within its error, 200 times over; errors of the right size."""
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(200):
        forth, back = (torch.tensor(1.7 + s * 1.125 + 1.5 * rng.normal(size=(64, 4))) for s in (-1, 1))
        estimates = ratio(forth, back)
        found.append(float(estimates[0]))
        left = estimates[1:]
        errors.append(math.sqrt(15 / 16 * float((left - left.mean()).square().sum())))
    z = (np.array(found) - 1.7) / np.array(errors)
    assert_standard(z)
    assert 0.8 < z.std() < 1.25
    repeated = torch.tensor(1.7 + 1.5 * rng.normal(size=(64, 1))).expand(-1, 50)  # a chain that says one thing 50 times
    once = ratio(repeated[:, :1], repeated[:, :1] + 2.25)[1:].std()
    assert float(ratio(repeated, repeated + 2.25)[1:].std()) == pytest.approx(float(once), rel=1e-3)


@pytest.mark.parametrize(("n", "chains", "each"), [(2000, 40, 5), (100, 16, 1), (50, 33, 3)])
def test_a_jackknife_by_short_steps_is_nearly_that_by_whole_ones(n, chains, each, monkeypatch):
    """Groups that differ in size too."""
    g = torch.Generator().manual_seed(n)
    forth, back = torch.randn(n, 1, generator=g).double() - 0.5, torch.randn(chains, each, generator=g).double() + 0.5
    found = ratio(forth, back)
    monkeypatch.setattr(bridging, "SHORT", 0.0)
    whole = ratio(forth, back)
    steps = whole[1:] - whole[0]
    assert 1e-3 < float(steps.abs().max()) < 0.1
    assert float((found - whole)[0].abs()) < 1e-8
    assert float((found - whole)[1:].abs().max()) < 0.04 * float(steps.abs().max())


def test_a_jackknife_of_a_group_that_tells_much_makes_no_single_step(monkeypatch):
    """By one alone it would be off by more than half a nat."""
    g = torch.Generator().manual_seed(1)
    forth, back = 5 * torch.randn(32, 1, generator=g).double() - 8, 5 * torch.randn(32, 1, generator=g).double() + 8
    found = ratio(forth, back)
    monkeypatch.setattr(bridging, "SHORT", 0.0)
    torch.testing.assert_close(found, ratio(forth, back))
    monkeypatch.setattr(bridging, "SHORT", math.inf)
    assert float((found - ratio(forth, back)).abs().max()) > 0.5


@pytest.mark.parametrize("n_models", [6, pytest.param(30, marks=pytest.mark.whole)])
def test_log_z_from_a_reference_and_along_a_ladder_is_the_exact_one(n_models):
    """All models within their errors, and, of 30 models, errors of the right size."""
    z: dict[str, list[float]] = {"reference": [], "ladder": []}
    for k in range(n_models):
        model = random_model(2, 5, k, strength=0.6, dtype=torch.float32)
        truth = exact.log_z(model.double())
        model = model.float()
        v = exact.sample(model, 2000, seed=k)[0]
        base = Base(v.float().mean(0), v.float().var(0))
        q = Reference(torch.ones(1), base.mean[None], torch.linalg.cholesky(torch.cov(v.float().T))[None]).widened(base)
        found = log_z_of(model, GlobalMoves(q), n_states=20, n_draws=4000, seed=k)
        z["reference"].append((found.log_z - truth) / found.error)
        ladder = log_z_of(model, ParallelTempering(base, 6), n_states=40, seed=k)
        z["ladder"].append((ladder.log_z - truth) / ladder.error)
        assert max(found.error, ladder.error) < 0.1
    for name, scores in z.items():
        assert_standard(scores, n_cases=2)
        assert n_models < 30 or 0.6 < float(np.std(scores)) < 1.6, name


def test_a_look_is_the_log_likelihood_of_the_rows():
    """Within the error of log Z, whatever the rows; the error has those of both."""
    model = random_model(2, 5, 1, strength=0.6, dtype=torch.float32)
    rows = 3 * torch.randn(50, 2, generator=generator(0, "rows"))
    found = score(model, log_z_of(model, GlobalMoves(reference(torch.float32)), seed=1), HeldOut(rows))
    log_p = -model.free_energy(rows).double().detach() - exact.log_z(model.double())
    assert_standard((found.mean - float(log_p.mean())) / found.log_z.error)
    assert found.log_z.error < 0.1
    assert found.error == pytest.approx(math.hypot(float(log_p.std()) / 50**0.5, found.log_z.error))


def test_errors_of_log_z_are_those_of_whole_chains():
    """Whichever state of a chain came first."""
    model, rng = random_model(2, 4, 1), generator(0, "order")
    drawn, states = reference().sample(200, Blocks(1, 1)), torch.randn(6, 32, 2, generator=rng).double()
    shuffled = torch.stack([chain[torch.randperm(6, generator=rng)] for chain in states.unbind(1)], 1)
    one, two = (from_reference(model.freeze(), reference(), drawn, x) for x in (states, shuffled))
    assert (two.log_z, two.error) == pytest.approx((one.log_z, one.error))


@pytest.mark.parametrize("n_seeds", [6, pytest.param(40, marks=pytest.mark.whole)])
def test_a_look_after_a_round_needs_no_chains_of_its_own(n_seeds, monkeypatch):
    """The average's log Z by what the round has drawn, against enumeration: within errors of the right size.

    At most one seed in twenty takes its last round back, or has draws of which a little less than `LEAST` tell of the
    average; which does so hangs on the rounding of a processor.
    """
    calls: list[object] = []
    monkeypatch.setattr(watching, "log_z_of", lambda *args, **options: calls.append(args))
    rows, z, seed = clusters(300, 0).float(), [], 119
    q = Reference(torch.ones(1), rows.mean(0)[None], torch.linalg.cholesky(torch.cov(rows.T))[None])
    while len(z) < n_seeds:
        seed += 1
        sampler, model = GlobalMoves(q, 2), GRBM(2, 6, seed=seed)
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05), seed=seed)
        for _ in fit(state, rows, PCD(sampler, 2, 64), FitOptions(33, 100, rounds=3, average_decay=0.9)):
            pass
        average = state.average
        assert average is not None
        with torch.no_grad():
            average.W.mul_(1.01)
            average.log_var.add_(0.05)
        watch = Watch(sampler, HeldOut(rows[:40]))
        if watch._from_round(state) is None:
            assert seed - 120 - len(z) < n_seeds // 20, "rounds rarely tell nothing"
            continue
        nats = watch.look(state)
        assert nats.update == 33
        assert nats.log_z.error < 0.1
        z.append((nats.log_z.log_z - exact.log_z(copy.deepcopy(average).double())) / nats.log_z.error)
    assert_standard(z, n_cases=2)
    assert n_seeds < 40 or 0.7 < float(np.std(z)) < 1.35
    assert not calls
    monkeypatch.undo()
    drawn, state.drawn = state.drawn, None
    assert abs(Watch(sampler, HeldOut(rows[:40])).look(state).mean - nats.mean) < 0.2
    state.drawn = drawn
    with torch.no_grad():
        average.mu.add_(3.0)
    assert Watch(sampler, HeldOut(rows[:40]))._from_round(state) is None, "too few draws tell of a model so far away"


def clusters(n: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0], [4, 0], [0, 4.0], [5, 5]])
    return torch.tensor(centres[rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])] + 0.4 * rng.normal(size=(n, 2)))


def test_a_start_that_is_as_wide_as_the_data_whatever_the_number_of_units():
    whitened = whiten(clusters(1000, 0).numpy())
    z = whitened.transform(clusters(1000, 0))
    for n_hidden in (64, 128, 512):
        model = matched_(GRBM(2, n_hidden), z, seed=1)
        with torch.no_grad():
            back = model.visible_mean(model(z))
        centred = z - z.mean(0)
        slope = float((back * centred).sum() / centred.square().sum())
        left = float((centred.square().mean(0) - 1).sum() / centred.square().mean(0).sum())
        assert slope == pytest.approx(1.5 * left, rel=0.02)
        torch.testing.assert_close(back.mean(0), z.mean(0), rtol=0, atol=0.05)
        torch.testing.assert_close(model.var, torch.ones(2))
    assert float(matched_(GRBM(2, 16), z).var[0]) == pytest.approx(0.3)


def three_of_many(n_columns: int, distance: float) -> torch.Tensor:
    """Three round clusters so far from each other, in the plane of the first two of many columns (900, N)."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(900, n_columns, generator=rng, dtype=torch.float64)
    corners = distance * torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]], dtype=torch.float64)
    x[:, :2] += corners[torch.randint(3, (900,), generator=rng)]
    return x - x.mean(0)


def test_weights_point_to_clusters_that_lie_in_few_of_many_directions():
    """And the model is wider in the others by a tenth of a variance at most; it was many times as wide."""
    z = three_of_many(40, 24.0)
    aside = {}
    for few in (0.1, 0.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(initialise, "FEW", few)
            model = matched_(GRBM(40, 128), z, seed=1)
        lengths = model.W.detach().double().square().sum(1)
        aside[few] = float(lengths[2:].mean()) / 4  # of the prior's variance, were hidden units on half of the time
    assert aside[0.1] < 0.1
    assert aside[0.0] > 5
    usual = three_of_many(10, 24.0)  # whose two directions are a fifth of all: as before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(initialise, "FEW", 0.0)
        before = matched_(GRBM(10, 128), usual, seed=1)
    assert torch.equal(before.W, matched_(GRBM(10, 128), usual, seed=1).W)


@pytest.mark.slow
def test_clusters_far_apart_in_many_columns_are_found():
    """Three clusters in 40 columns: within a nat of the truth, where a start in all directions ends at a Gaussian."""
    x = three_of_many(40, 24.0)
    train, test = x[:500].numpy(), x[500:].numpy()
    rbm = GaussianBernoulliRBM(random_state=0).fit(train)
    truth = -20 * (1 + math.log(2 * math.pi)) - math.log(3)
    assert not rbm.is_gaussian_
    assert rbm.score(test) > truth - 1


def test_hidden_units_beyond_what_rows_can_teach_begin_weak() -> None:
    z = torch.randn(1000, 2, generator=generator(3)) * 3
    few, many = matched_(GRBM(2, 64), z, seed=1), matched_(GRBM(2, 256), z, n_at_work=64, seed=1)
    lengths = many.W.norm(dim=0)
    assert torch.equal(many.W[:, :64], few.W)
    assert torch.equal(many.b[:64], few.b)
    torch.testing.assert_close(lengths[64:], torch.full((192,), 0.01 * float(lengths[:64].mean())))
    apart = few.free_energy(z) - many.free_energy(z)
    assert float(apart.std()) < 0.005 * float(few.free_energy(z).std())  # 0.7 with all at work
    coarse = matched_(GRBM(2, 64, dtype=torch.float64), z, n_at_work=32, seed=1)  # too few for clusters: σ² = 0.3
    exactly = matched_(GRBM(2, 32, dtype=torch.float64), z, seed=1)
    assert torch.equal(coarse.W[:, :32], exactly.W)
    assert torch.equal(coarse.log_var, exactly.log_var)
    undecided = (z.double() @ coarse.W[:, 32:] / 0.3 + coarse.b[32:]).abs().min(0).values
    assert float(undecided.detach().max()) < 1e-6  # each weak unit at a row
    with pytest.raises(ValueError, match="n_at_work must be at least 1, got 0"):
        matched_(GRBM(2, 64), z, n_at_work=0)
    found = [whitened_recipe(2000, n, 2).model.n_at_work for n in (None, 17, 512)]
    assert [*found, whitened_recipe(2000, 512, 10).model.n_at_work] == [200, 17, 200, 400]


def whitened_recipe(n_rows: int, n_hidden: int | None = None, n_units: int = 2, **train: int | float) -> Recipe:
    """Of a whitened table, but for settings of learning."""
    asked = {"model.n_hidden": n_hidden} | {f"train.{name}": x for name, x in train.items()}
    return resolve(asked, Facts(n_rows, n_units, suits_whitening=True))


def objective(recipe: Recipe, frame: Frame) -> PCD:
    return recipe.objective.build(recipe.sampler.build(frame), recipe.train.batch_size)


def test_a_look_is_at_the_average_where_there_is_one():
    z = clusters(200, 0)
    frame = whiten(z.numpy())
    rows, recipe = frame.transform(z), whitened_recipe(200, 4)
    state, goal = begin(recipe, frame, rows, 0), objective(recipe, frame)
    average = gaussian_(copy.deepcopy(state.model), frame.base.mean, frame.base.var)
    watch = Watch(goal.sampler, HeldOut(rows), seed=0)
    alone = watch.look(replace(state, model=average))
    assert watch.look(replace(state, average=average)).mean == alone.mean
    log_z = alone.log_z
    assert log_z.lower <= log_z.log_z + 5 * log_z.error
    assert log_z.lower - 0.5 < log_z.upper < log_z.lower + 2, "between the ways there and back, which differ little"


def test_the_best_look_is_the_one_that_is_kept(monkeypatch):
    found = iter([1.0, 3.0, math.nan, 2.9])
    monkeypatch.setattr(watching, "score", lambda *_, **__: Nats(0, next(found), 0.1, known(0.0)))
    model = GRBM(2, 3)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    keep = KeepBest(Watch(GlobalMoves(reference()), HeldOut(torch.zeros(4, 2))), FitOptions(4, rounds=4), state)
    for state.update in range(1, 5):
        model.b.data.fill_(state.update)
        keep.look(state)
        assert float(model.b[0]) == (2 if state.update == 3 else state.update), "taken back where it is no number"
    assert (keep.best.mean, keep.best.update) == (3, 2)
    assert (keep.model().b == 2).all()
    assert state.optimizer.param_groups[0]["initial_lr"] == 0.05
    again = KeepBest(keep.watch, keep.options, TrainState(GRBM(2, 3), state.optimizer))
    assert again.good.adaptation is not state.adaptation, "which goes on adapting"
    again.good.average = GRBM(2, 3)  # of the update that is resumed from
    again.load_state_dict(keep.state_dict())
    assert again.good.average is None
    assert (again.best.mean, again.best.update, again.halvings) == (3, 2, 1)
    assert torch.equal(again.model().b, keep.model().b)
    wrong = {"best": ["a"] * 5, "chains.v": torch.zeros(4, 9), "model.b": torch.full((3,), math.nan)}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match="the best"):
            again.load_state_dict(keep.state_dict() | {name: value})


def test_at_least_ten_rows_are_held_out_of_forty_or_more():
    found = {n: len(held_out(n, 0.1, 0)[1]) for n in (39, 40, 99, 600)}
    assert found == {39: 0, 40: 10, 99: 10, 600: 60}
    assert len(held_out(600, 0.0, 0)[1]) == 0


@pytest.mark.parametrize(("rounds", "stops_at"), [(0, 5), (96, None)])
def test_patience_runs_out_after_validations_without_a_gain(rounds, stops_at):
    """A gain is more than ``tol`` above all scores before; before rounds no validation counts."""
    options, state = FitOptions(100, rounds=rounds), TrainState(GRBM(2, 3), None)
    early, stopped = EarlyStopping(options, patience=2, tol=0.5), None
    for update, mean in enumerate((1.0, 1.4, 2.0, math.nan, 2.1, 2.2), 1):
        nats = Nats(update, mean, 0.1, known(0.0))
        if update < 5 or not rounds:
            early.after(Progress(update, 100, nats, None, state, None))
        early.after(Progress(update, 100, None, None, state, None))
        stopped = stopped or (update if early.stops else None)
    assert stopped == stops_at
    again = EarlyStopping(options, patience=2, tol=0.5)
    again.load_state_dict(early.state_dict())
    assert (again.bar, again.since, again.stops) == (early.bar, early.since, early.stops)


def test_a_machine_of_which_nothing_can_be_computed_is_taken_back(monkeypatch):
    """Weights so large that annealing has no matrix to factor, as after a step at a rate of 50."""
    rbm = GaussianBernoulliRBM(8, learning_rate=50.0, n_iter=20, random_state=0)
    heard, x = [], clusters(120, 0).numpy()
    rbm.fit(x, callback=lambda progress: heard.append(progress.state.optimizer.param_groups[0]["initial_lr"]))
    assert heard[-1] < 50.0
    assert np.isfinite(rbm.score(x))


@pytest.mark.whole
def test_online_log_z_follows_the_exact_one_while_learning():
    """Along training, rounds among it: 28 of 30 validations within 3 errors of quadrature, all within their bound."""
    rows = clusters(1000, 0)
    frame = whiten(rows.numpy())
    z, recipe = frame.transform(rows), whitened_recipe(1000, 64, n_updates=510, rounds=10)
    state, goal = begin(recipe, frame, z, 0), objective(recipe, frame)
    watch, scores = Watch(goal.sampler, HeldOut(z[:100]), seed=0), []
    for _ in fit(state, z, goal, recipe.train):
        if state.update % 25 == 0 or state.update > 500:
            nats = watch.look(state)
            assert state.average is not None
            truth = exact.quadrature(state.average).log_z
            scores.append((nats.log_z.log_z - truth) / nats.log_z.error)
    scores = np.abs(scores)
    assert len(scores) == 30
    assert (scores < 3).sum() >= 28
    assert_standard(scores)


@pytest.mark.whole
@pytest.mark.usefixtures("few_looks")
def test_learning_keeps_the_best_stops_early_and_takes_back_what_went_wrong(monkeypatch):
    monkeypatch.setattr("grbm.core.options.LOOKS", 10)
    monkeypatch.setattr("grbm.core.options.LOOKS_BEFORE_ROUNDS", 10)
    rows = clusters(600, 0)
    frame = whiten(rows.numpy())
    z = frame.transform(rows)
    from_rows, scored, _ = held_out(600, 0.2, 0)
    assert len(scored) == 120
    assert not set(from_rows.tolist()) & set(scored.tolist())
    usual = whitened_recipe(600, 64, n_updates=203, rounds=3)
    goal, gaussian = objective(usual, frame), float(gaussian_log_prob(frame, z[scored]).mean())

    class Found(NamedTuple):
        ended: str
        keep: KeepBest
        looks: list[Nats]
        state: TrainState

    def run(stop=lambda progress: False, patience=None, tol=0.0, **train):
        recipe = changed(usual, {f"train.{name}": x for name, x in train.items()})
        state, looks, options = begin(recipe, frame, z[from_rows], 0), [], recipe.train
        keep = KeepBest(Watch(goal.sampler, HeldOut(z[scored]), seed=0), options, state)
        told = Call(lambda p: looks.append(p.nats) or stop(p), lambda p: p.nats is not None)
        ended = learn(
            state, z[from_rows], goal, options, keep=keep, callbacks=[told, EarlyStopping(options, patience, tol)]
        )
        return Found(ended, keep, looks, state)

    found = run()
    assert found.ended == "finished"
    assert len(found.looks) == 13
    assert found.keep.best.mean == max(nats.mean for nats in found.looks) > gaussian + 1
    assert not is_gaussian_enough(frame, found.keep.model(), found.keep.best, HeldOut(z[scored]), z[from_rows])
    early = run(patience=2, tol=100.0)
    assert early.ended == "early"
    assert len(early.looks) == 12  # only rounds are cut short
    alone = run(patience=2, tol=100.0, rounds=0, n_updates=200)
    assert alone.ended == "early"
    assert len(alone.looks) == 3
    stopped = run(stop=lambda progress: progress.update >= 60)
    assert stopped.ended == "stopped"
    assert stopped.state.update == 60
    wild = run(learning_rate=5.0)
    assert wild.keep.best.mean > gaussian
    taken_back = run(learning_rate=20.0)
    assert taken_back.state.optimizer.param_groups[0]["initial_lr"] < 20.0
    far = changed(usual, {"train.learning_rate": 1e30})
    with pytest.raises(DivergenceError):
        learn(begin(far, frame, z, 0), z, goal, far.train)


def test_one_gaussian_is_kept_where_nothing_is_better():
    """Of Gaussian data, after a few updates from a start that is none."""
    rows = torch.tensor(np.random.default_rng(0).normal(size=(400, 3)))
    frame = whiten(rows.numpy())
    z, recipe = frame.transform(rows), whitened_recipe(400, 16, 3, n_updates=3, rounds=0)
    goal, state = objective(recipe, frame), begin(recipe, frame, z, 0)
    keep = KeepBest(Watch(goal.sampler, HeldOut(z[:100])), recipe.train, state)
    learn(state, z, goal, recipe.train, keep=keep)
    gaussian = one_gaussian(keep, recipe, frame, z, rows, measure(rows), seed=0)
    at, whole = gaussian.units(rows), gaussian.frame
    log_p = gaussian.model.log_prob(at, exact.log_z(gaussian.model)).double()
    torch.testing.assert_close(log_p.detach(), gaussian_log_prob(whole, at), atol=1e-4, rtol=0)
    assert float(gaussian_(GRBM(2, 3), torch.zeros(2), torch.ones(2)).W.abs().max()) == 0


def test_learning_with_global_moves_is_the_same_in_every_run():
    rows = clusters(300, 0)
    frame = whiten(rows.numpy())
    z, recipe = frame.transform(rows), whitened_recipe(300)
    goal, ends = objective(recipe, frame), []
    for _ in range(2):
        state = begin(recipe, frame, z, 3)
        for _ in fit(state, z, goal, FitOptions(5, 100)):
            pass
        ends.append(state.model.W.detach().clone())
    assert torch.equal(*ends)
    assert isinstance(goal, PCD)
    drawn = goal.sampler.reference.sample(4, Philox(1)), goal.sampler.reference.sample(4, generator(0, "a"))
    assert all(v.shape == (4, 2) for v in drawn)


def ring(n: int, seed: int) -> torch.Tensor:
    """Five clusters far apart, each column standardised by what it is in the long run."""
    rng = generator(seed, "ring")
    return (RING[torch.randint(5, (n,), generator=rng)] + 0.3 * torch.randn(n, 2, generator=rng)) / RING_STD


RING = 4 * torch.stack([torch.cos(torch.arange(5) * 2 * math.pi / 5), torch.sin(torch.arange(5) * 2 * math.pi / 5)], 1)
RING_STD = math.sqrt(8 + 0.3**2)


def test_the_readmes_recipe_finds_clusters_far_apart():
    """From the usual start a model stays a Gaussian, 2.8 nats below the truth, and Gibbs chains lose clusters."""
    data, test = ring(2000, 0), ring(2000, 1)
    model = anchored_(GRBM(2, 16, seed=0), data)
    sampler = GlobalMoves(Reference.fit(data))
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.02), seed=0)
    for _ in fit(state, data, PCD(sampler, n_steps=1), FitOptions(n_updates=600, rounds=15)):
        pass
    centres = torch.distributions.MultivariateNormal(RING / RING_STD, (0.3 / RING_STD) ** 2 * torch.eye(2))
    truth = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(torch.ones(5)), centres)
    less = exact.log_prob(model, test) - truth.log_prob(test)
    assert -0.1 < float(less.mean()) < 3 * float(less.std()) / 2000**0.5


def test_a_reference_fits_rows_and_is_wider():
    data = ring(1500, 0)
    q = Reference.fit(data)
    assert torch.equal(q.log_prob(data), Reference.fit(data).log_prob(data))
    assert len(q.weights) == 6, "five clusters, and a wide Gaussian"
    assert float(q.weights[-1]) == pytest.approx(0.1)
    torch.testing.assert_close((q.factors[-1] @ q.factors[-1].T).diagonal(), 1.7 * data.var(0, correction=0))
    apart = torch.cdist(q.means[:-1], RING / RING_STD)
    assert (apart.amin(0) < 0.03).all()
    some = Reference.fit(ring(9000, 0))
    assert torch.equal(some.means[:-1], Reference.fit(ring(9000, 0)[torch.arange(4000) * 9000 // 4000]).means[:-1])
