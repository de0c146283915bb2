"""Parallel tempering on a CUDA device against its definition: in Triton's interpreter where there is no GPU."""

import pytest
import torch

from grbm import Gibbs, GibbsLangevin, ParallelTempering, PartialGibbs
from grbm.core.randomness import Blocks, Philox
from grbm.evaluate import exact
from grbm.model import GRBM, Base
from grbm.samplers.moments import Moments
from grbm.samplers.moves import moves_of
from grbm.samplers.sampling import step_by_step
from tests.helpers import (
    DEVICE,
    KERNEL_KEY,
    TALL,
    agree,
    assert_standard,
    exact_chains,
    in_minutes,
    interpreted,
    random_model,
    z_scores,
)

pytest.importorskip("grbm.samplers.engines.cuda", reason="Triton is not installed")

from grbm.samplers.chains import Walk
from grbm.samplers.engines import cuda_buffers, cuda_ladder, engine_for
from grbm.samplers.engines.cuda import Cuda

KEY, ENGINE = KERNEL_KEY, Cuda()


@pytest.fixture(autouse=True)
def fresh_walkers():
    """Buffers are as large as tiles ask."""
    cuda_ladder.walker.cache_clear()


def walk(sampler, energy, v, n_steps, rng, engine=ENGINE, **options):
    ladder = energy.temper(sampler.betas().to(energy.W), sampler.base)
    v = v.expand(sampler.n_replicas, *v.shape) if v.ndim == 2 else v
    moves = moves_of(sampler.sampler, ladder, n_steps)
    return engine.run_ladder(ladder, moves, Walk(v, n_steps, **options), rng)


def far_base(N: int) -> Base:
    """A base with another mean and variance in every unit than any model has."""
    rng = torch.Generator().manual_seed(1)
    return Base(torch.randn(N, generator=rng).to(DEVICE), (torch.rand(N, generator=rng) + 0.5).to(DEVICE))


INNER = [Gibbs(), PartialGibbs(0.5), GibbsLangevin(0.2)]
SMALL, LARGE = [(1, 1, 3, 2), (3, 70, 5, 5)], (70, 130, 7, 4)  # the last of several tiles each way


LADDERS = [(*SMALL[0], inner, "highest") for inner in INNER] + [(*LARGE, INNER[1], "fast")]
LADDERS += [
    pytest.param(*size, inner, precision, marks=interpreted)
    for inner in INNER
    for size in (*SMALL, LARGE)
    for precision in ("highest", "fast")
    if (*size, inner, precision) not in LADDERS and (size != LARGE or inner == INNER[1])
]
LADDERS += [
    pytest.param(*LARGE, inner, precision, marks=in_minutes)
    for inner in (INNER[0], INNER[2])
    for precision in ("highest", "fast")
]


@pytest.mark.parametrize(("N", "M", "C", "R", "inner", "precision"), LADDERS, ids=repr)
def test_the_fused_ladder_is_its_definition(inner, precision, N, M, C, R):
    """From the same random numbers: every unit of every replica, the swaps, the sums of the states at β = 1."""
    model = random_model(N, M, 3, strength=0.2 * N**-0.5, dtype=torch.float32)  # so that units turn on and off
    energy, sampler = model.to(DEVICE).freeze(precision), ParallelTempering(far_base(N), R, sampler=inner)
    v = torch.randn(C, N, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    for n_steps, burn_in, marginal in ((0, -1, True), (1, 0, False), (4, 1, True), (3, None, False)):
        one = walk(sampler, energy, v, n_steps, Philox(KEY, 5), burn_in=burn_in, probabilities=marginal)
        two = step_by_step(energy, sampler, Walk(v, n_steps, burn_in, marginal), Philox(KEY, 5))
        assert (one.sums is None) == (burn_in is None)
        for a, b in zip(one.chains[:3], one.chains.state[:3], strict=True):
            assert torch.equal(a, b[-1])
        if n_steps:
            assert one.swaps.n_proposed == two.swaps.n_proposed == n_steps * C
        if precision == "highest":
            agree(one._replace(chains=one.chains.state), two._replace(chains=two.chains.state))
            if n_steps:
                torch.testing.assert_close(one.swaps.rate(), two.swaps.rate(), rtol=0, atol=1e-5)
            if burn_in is not None:
                assert one.sums.count == two.sums.count
                for a, b in zip(one.sums.mean(), two.sums.mean(), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            continue
        # rounding to 11 bits decides one draw or swap in some thousands differently
        ours, theirs = one.chains.state, two.chains.state
        same = (ours.h == theirs.h).all(-1) & ((ours.v - theirs.v).abs() < 0.02).all(-1)
        assert same.double().mean() > 0.7
        assert same.any(1).all()  # of every replica
        torch.testing.assert_close(ours.h_prob[same], theirs.h_prob[same], rtol=0, atol=5e-3)
        if burn_in is not None:
            own = moments_step_by_step(sampler, energy, v, n_steps, burn_in, marginal)
            for a, b in zip(one.sums.mean(), own, strict=True):
                torch.testing.assert_close(a, b, rtol=5e-3, atol=5e-3)


def moments_step_by_step(sampler, energy, v, n_steps: int, burn_in: int, marginal: bool) -> Moments:
    """What the walk should have summed: means over its states, each a step from the last."""
    rng, chains, states = Philox(KEY, 5), None, []
    for t in range(-1, n_steps):
        start = v if chains is None else chains.state.v
        chains = walk(sampler, energy, start, int(t >= 0), rng, given=chains and chains.state).chains
        if t >= burn_in:
            states.append((chains.v.double(), (chains.h_prob if marginal else chains.h).double()))
    return Moments.of(*(torch.cat(x) for x in zip(*states, strict=True)))


@pytest.mark.parametrize("precision", ["highest", pytest.param("fast", marks=interpreted)])
def test_a_fused_ladder_in_stretches_or_by_fewer_chains_is_the_same(precision):
    """Going on from given states, and a chain without its neighbours: with the same numbers nothing changes."""
    energy = random_model(5, 20, 1, dtype=torch.float32).to(DEVICE).freeze(precision)
    sampler = ParallelTempering(far_base(5), 4)
    v = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    whole = walk(sampler, energy, v, 6, Philox(KEY)).chains
    rng = Philox(KEY)
    first = walk(sampler, energy, v, 2, rng).chains
    second = walk(sampler, energy, first.state.v, 4, rng, given=first.state).chains
    torch.testing.assert_close(second.state.v, whole.state.v, rtol=1e-4, atol=1e-4)
    assert torch.equal(second.state.h, whole.state.h)
    few = walk(sampler, energy, v[:, 7:9], 6, Philox(KEY, 7)).chains
    torch.testing.assert_close(few.state.v, whole.state.v[:, 7:9], rtol=1e-4, atol=1e-4)
    start = walk(sampler, energy, first.state.v, 0, Philox(KEY), given=first.state, burn_in=-1, probabilities=True)
    torch.testing.assert_close(start.sums.mean().h.float(), first.h_prob.mean(0), rtol=0, atol=1e-3)


def test_a_fused_ladder_leaves_nothing_to_the_next_over_its_buffers():
    energy = random_model(5, 7, 0, dtype=torch.float32).to(DEVICE).freeze()
    sampler, v = (
        ParallelTempering(far_base(5), 3),
        torch.randn(6, 5, generator=torch.Generator().manual_seed(2)).to(DEVICE),
    )
    first, second = (walk(sampler, energy, v, 3, Philox(KEY, 5), burn_in=0) for _ in range(2))
    for a, b in zip(first.sums.mean(), second.sums.mean(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first.chains.v, second.chains.v)
    assert torch.equal(first.swaps.n_accepted, second.swaps.n_accepted)


@pytest.mark.parametrize("precision", ["highest", "fast"])
@pytest.mark.parametrize("C", [pytest.param(2000, marks=interpreted), pytest.param(8000, marks=in_minutes)])
def test_a_fused_ladder_does_not_drift(C, precision, monkeypatch):
    """Replicas that start at the exact distribution of each rung stay there."""
    monkeypatch.setattr(cuda_buffers, "TAIL", cuda_buffers.TAIL | TALL)
    model = random_model(3, 5, 2)
    base = Base(torch.tensor([0.5, 0.0, -0.5]).double(), torch.tensor([1.5, 2.0, 1.0]).double())
    sampler = ParallelTempering(base, 4, sampler=PartialGibbs(0.3))
    models = []
    for rung in (model.freeze().temper(beta, base).plain() for beta in sampler.betas()):
        models.append(GRBM(3, 5, dtype=torch.float64))
        models[-1].load_state_dict({"W": rung.W, "b": rung.b, "mu": rung.mu, "log_var": rung.var.log()})
    v = torch.stack([exact_chains(m, C, r)[0] for r, m in enumerate(models)]).float().to(DEVICE)
    energy = model.float().to(DEVICE).freeze(precision)
    sampler = ParallelTempering(Base(*(x.float().to(DEVICE) for x in base)), 4, sampler=PartialGibbs(0.3))
    walked = walk(sampler, energy, v, 4, Blocks(4, 4, device=DEVICE))
    for m, v_end, h_end in zip(models, walked.chains.state.v, walked.chains.state.h, strict=True):
        assert_standard(z_scores(v_end, h_end, exact.moments(m)), n_cases=4 * 4)  # rungs, precisions, numbers of chains
    assert 0.1 < float(walked.swaps.rate().min()) < 1


@pytest.mark.skipif(DEVICE.type != "cuda", reason="no GPU")
def test_a_ladder_on_a_gpu_runs_fused_and_repeats_itself():
    """The first walk of a shape compiles, the next is captured, the third replayed: three times the same numbers."""
    energy = random_model(20, 70, 1, dtype=torch.float32).to(DEVICE).freeze()
    sampler = ParallelTempering(far_base(20), 5)
    v = torch.randn(33, 20, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    engine = engine_for(v, Philox(KEY))
    assert isinstance(engine, Cuda)
    ends = [walk(sampler, energy, v, 7, Philox(KEY), engine).chains.v for _ in range(3)]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
    torch.testing.assert_close(sampler.at_once(energy, Walk(v, 7), Philox(KEY)).chains.v, ends[0])
