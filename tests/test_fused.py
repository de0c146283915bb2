"""The CUDA walk against its definition: on a GPU where there is one, else in Triton's interpreter on the CPU."""

import importlib

import pytest
import torch

from grbm import (
    CD,
    PCD,
    DivergenceError,
    FitOptions,
    Gibbs,
    GibbsLangevin,
    Langevin,
    ModifiedCD,
    PartialGibbs,
    TrainState,
    fit,
)
from grbm.core.distributed import ALONE
from grbm.core.randomness import Blocks, Philox
from grbm.evaluate import exact
from grbm.learning.descent import pool, set_gradients
from grbm.learning.objectives import Negative
from grbm.samplers.chains import Walk
from grbm.samplers.engines import engine_for
from grbm.samplers.engines.definition import Engine
from grbm.samplers.moments import Moments
from grbm.samplers.moves import Moves
from grbm.samplers.sampling import step_by_step
from tests.helpers import (
    CUDA,
    DEVICE,
    KERNEL_KEY,
    TALL,
    agree,
    assert_standard,
    exact_chains,
    in_minutes,
    interpreted,
    own_moments,
    random_model,
    z_scores,
)

fused = pytest.importorskip("grbm.samplers.engines.cuda", reason="Triton is not installed")
cuda_buffers, walks = (importlib.import_module(f"grbm.samplers.engines.cuda_{name}") for name in ("buffers", "walk"))

KEY, ENGINE = KERNEL_KEY, fused.Cuda()
PRECISIONS = ("highest", "high", "fast")
SAMPLERS = [
    Gibbs(),
    GibbsLangevin(0.05),
    Langevin(0.05, per_unit=True),
    GibbsLangevin(0.3, adjust_from=0),
    Langevin(0.5, adjust_from=1, temperature=2.0),
    GibbsLangevin(0.3, adjust_from=1, temperature=3.0, joint=True),
]
SMALL, SEVERAL = ("highest", 2, 5, 3, 6), [(x, 70, 70, 17, 5) for x in ("highest", "fast")]  # several tiles each way
MORE = [("high", 70, 70, 17, 5)]  # which without a GPU is "highest"
MORE += [("high", 2, 5, 3, 11), ("fast", 2, 5, 3, 11), *((x, 70, 130, 17, 11) for x in PRECISIONS)]
WALKS = [(SAMPLERS[k], *SMALL) for k in (0, 2, 4, 5)] + [(SAMPLERS[0], *SEVERAL[1])]
WALKS += [
    pytest.param(sampler, *case, marks=interpreted)
    for sampler in SAMPLERS
    for case in (SMALL, *SEVERAL)
    if (sampler, *case) not in WALKS
]
WALKS += [pytest.param(sampler, *case, marks=in_minutes) for sampler in SAMPLERS for case in MORE]
needs_gpu = pytest.mark.skipif(not CUDA, reason="no GPU")


def walk(sampler, energy, v, n_steps, rng, burn_in, marginal):
    return ENGINE.run(energy, sampler.moves(energy, max(1, n_steps)), Walk(v, n_steps, burn_in, marginal), rng)


def moments_in_stretches(energy, moves, v, n_steps: int, burn_in: int, marginal: bool):
    """What the walk should have summed: means over its states, each a step from the last."""
    rng = Philox(KEY, 5)
    chains, states = ENGINE.run(energy, moves.part(0, 0), Walk(v, 0), rng).chains, []
    for t in range(-1, n_steps):
        if t >= 0:
            chains = ENGINE.run(energy, moves.part(t, t + 1), Walk(chains.v, 1, given=chains), rng).chains
        if t >= burn_in:
            states.append((chains.v.double(), (chains.h_prob if marginal else chains.h).double()))
    return Moments.of(*(torch.cat(x) for x in zip(*states, strict=True)))


@pytest.mark.parametrize(("sampler", "precision", "N", "M", "C", "n_long"), WALKS, ids=repr)
def test_the_fused_walk_is_its_definition(sampler, precision, N, M, C, n_long):
    """From the same random numbers: every unit of every chain and all sums; half precision within its rounding."""
    model = random_model(N, M, 3, strength=0.2 * N**-0.5, dtype=torch.float32)  # so that units turn on and off
    energy = model.to(DEVICE).freeze(precision)
    v = torch.randn(C, N, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for n_steps, burn_in, marginal in ((0, -1, True), (1, 0, False), (3, 1, True), (n_long, -1, False)):
        one = walk(sampler, energy, v, n_steps, Philox(KEY, 5), burn_in, marginal)
        two = step_by_step(energy, sampler, Walk(v, n_steps, burn_in, marginal), Philox(KEY, 5))
        assert one.sums.count == two.sums.count
        moves = sampler.moves(energy, max(1, n_steps))
        if n_steps <= 3 or N == 2:  # long walks of many units take the interpreter too long
            own = own_moments(ENGINE, energy, moves, v, n_steps, burn_in, marginal, KEY)
        else:
            own = moments_in_stretches(energy, moves, v, n_steps, burn_in, marginal)
        limit = 1e-4 if precision == "highest" else 5e-3
        for a, b in zip(one.sums.mean(), own, strict=True):
            torch.testing.assert_close(a, b, rtol=limit, atol=limit)
        if precision == "highest":
            agree(one, two)
            continue
        # rounding to 11 bits moves logits by about 1e-3, and so decides one draw in some thousands differently
        same = (one.chains.h == two.chains.h).all(-1) & ((one.chains.v - two.chains.v).abs() < 0.02).all(-1)
        assert same.double().mean() > 0.7
        torch.testing.assert_close(one.chains.h_prob[same], two.chains.h_prob[same], rtol=0, atol=5e-3)


def moves_that_change(energy, n_steps):
    """Other coefficients at every step."""
    k = torch.linspace(0.1, 0.7, n_steps, device=energy.W.device)[:, None]
    return Moves(k * torch.ones_like(energy.var), (1 - k) * energy.var.sqrt())


@pytest.mark.parametrize("burn_in", [-1, 2, None])
@pytest.mark.parametrize("n_slots", [3, 100], ids=["stretches", "whole"])
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize(("N", "M", "C"), [(2, 5, 3), (64, 130, 17)])
def test_a_walk_on_chip_is_its_definition(N, M, C, changes, n_slots, burn_in, monkeypatch):
    """All steps in one kernel: every chain that no rounding sent another way, and all sums."""
    monkeypatch.setattr(walks, "ROOM", n_slots * C * (N + M) * 2)
    walks.walker.cache_clear()
    energy = random_model(N, M, 3, strength=0.2 * N**-0.5, dtype=torch.float32).to(DEVICE).freeze("fast")
    v = torch.randn(C, N, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    moves = moves_that_change(energy, 7) if changes else GibbsLangevin(0.3).moves(energy, 7)
    one = ENGINE.run(energy, moves, Walk(v, 7, burn_in), Philox(KEY, 5))
    two = Engine().run(energy, moves, Walk(v, 7, burn_in), Philox(KEY, 5))
    same = (one.chains.h == two.chains.h).all(-1) & ((one.chains.v - two.chains.v).abs() < 0.02).all(-1)
    assert same.double().mean() > 0.6
    if burn_in is not None:
        for a, b in zip(one.sums.mean(), moments_in_stretches(energy, moves, v, 7, burn_in, False), strict=True):
            torch.testing.assert_close(a, b, rtol=5e-3, atol=5e-3)
    walks.walker.cache_clear()


@pytest.mark.parametrize("burn_in", [-1, 2])
@pytest.mark.parametrize("sampler", [Langevin(0.05), GibbsLangevin(0.3, adjust_from=3)], ids=repr)
def test_sums_in_stretches_are_the_sums(sampler, burn_in, monkeypatch):
    """Of walks whose states do not fit into the memory for them."""
    energy = random_model(6, 9, 3, strength=0.1, dtype=torch.float32).to(DEVICE).freeze()
    v, found = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).to(DEVICE), []
    for room in (1e9, 3 * 5 * (6 + 9 * 2) * 4):
        monkeypatch.setattr(walks, "ROOM", room)
        walks.walker.cache_clear()
        found.append(ENGINE.run(energy, sampler.moves(energy, 8), Walk(v, 8, burn_in, True), Philox(KEY)))
    walks.walker.cache_clear()
    agree(*found)
    for a, b in zip(*(one.sums.mean() for one in found), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("precision", ["highest", "fast"])
@pytest.mark.parametrize(("N", "M", "B", "C"), [(3, 5, 8, 4), (70, 130, 16, 12)])
def test_both_phases_at_once_are_the_phases(N, M, B, C, precision, centred, probabilities):
    """The gradient and all that is pooled, from the same walks and the same random numbers."""
    one, two = (random_model(N, M, 3, strength=0.2 * N**-0.5, dtype=torch.float32).to(DEVICE) for _ in range(2))
    energy, moves = one.freeze(precision), GibbsLangevin(0.1).moves(one.freeze(), 5)
    rows, v = (torch.randn(n, N, generator=torch.Generator().manual_seed(n)).to(DEVICE) for n in (B, C))
    data, walk, rng = Walk(rows, 0, -1, probabilities), Walk(v, 5, 1, probabilities), Blocks(5, 4, device=DEVICE)
    at_data = ENGINE.run(energy, Gibbs().moves(energy, 1), data, rng)
    chains = ENGINE.run(energy, moves, walk, rng)
    pooled = pool(at_data.sums, Negative(chains.sums, None, None, chains.chains.v), ALONE)
    norm = set_gradients(two, energy, pooled, centred=centred)
    rng = Blocks(5, 4, device=DEVICE)
    rng.draw = 1
    last_v, found, found_norm = ENGINE.learn(one, energy, moves, data, walk, rng, 0, centred=centred)
    torch.testing.assert_close(last_v, chains.chains.v, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found_norm, norm, rtol=1e-4, atol=0)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=2e-5)
    for name in ("mean_h", "data_v", "data_h", "mean_v2"):
        torch.testing.assert_close(getattr(found, name).double(), getattr(pooled, name).double(), rtol=1e-4, atol=1e-4)
    assert found.n_data == B


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("rng", [lambda: Philox(KEY, 5, 2), lambda: Blocks(4, 2)], ids=["philox", "blocks"])
def test_draws_are_those_of_the_definition(kind, rng):
    like, one, two = torch.zeros(1, device=DEVICE), rng(), rng()
    for _ in range(2):
        expected = getattr(two.philox(18), kind)((18, 70), like)
        two.draw += isinstance(two, Blocks)
        torch.testing.assert_close(ENGINE.draw(kind, (18, 70), like, one), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 70, 3000])
def test_sums_over_states_are_exact(n):
    buffers = cuda_buffers.Buffers(4, 70, 33, "highest", torch.device(DEVICE))
    u, h = (torch.randn(n, k, generator=torch.Generator().manual_seed(k)).to(DEVICE) for k in (70, 33))
    for part in (slice(0, n // 2), slice(n // 2, n)):
        if part.stop > part.start:
            buffers.add(u[part], u[part], h[part])
    found = *buffers.sums_u, buffers.sum_h, buffers.sum_uh
    u, h = u.double(), h.double()
    for a, b in zip(found, (u.sum(0), u.square().sum(0), h.sum(0), u.T @ h), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("sampler", [GibbsLangevin(0.05), GibbsLangevin(0.3, adjust_from=0)], ids=repr)
def test_given_hidden_units_and_stretches(sampler):
    """A walk in two parts is the walk."""
    energy = random_model(20, 33, 1, strength=0.2 * 20**-0.5, dtype=torch.float32).to(DEVICE).freeze()
    v = torch.randn(9, 20, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    moves = sampler.moves(energy, 6)
    whole = ENGINE.run(energy, moves, Walk(v, 6), Philox(KEY)).chains
    rng = Philox(KEY)
    first = ENGINE.run(energy, moves.part(0, 2), Walk(v, 2), rng).chains
    second = ENGINE.run(energy, moves.part(2, 6), Walk(first.v, 4, given=first), rng).chains
    torch.testing.assert_close(second.v, whole.v, rtol=1e-4, atol=1e-4)
    assert torch.equal(second.h, whole.h)


def test_blocks_draw_the_same_wherever_they_are():
    energy = random_model(7, 9, 1, dtype=torch.float32).to(DEVICE).freeze()
    v = torch.randn(16, 7, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    moves = Gibbs().moves(energy, 3)
    whole = ENGINE.run(energy, moves, Walk(v, 3), Blocks(5, 4, device=DEVICE)).chains.v
    part = ENGINE.run(energy, moves, Walk(v[4:8], 3), Blocks(5, 4, range(1, 2), DEVICE)).chains.v
    torch.testing.assert_close(part, whole[4:8])


@pytest.mark.parametrize("precision", ["highest", pytest.param("fast", marks=interpreted)])
@pytest.mark.parametrize(
    "sampler",
    [
        GibbsLangevin(0.5, adjust_from=0),
        *(pytest.param(other, marks=interpreted) for other in (Gibbs(), PartialGibbs(0.8))),
    ],
    ids=repr,
)
def test_the_fused_walk_does_not_drift(sampler, precision, monkeypatch):
    """4,000 chains from the exact distribution, on the kernels' own draws: all moments stay there."""
    model = random_model(3, 6, 2)
    truth = exact.moments(model)
    v, _ = exact_chains(model, 4000, seed=2)
    energy = model.float().to(DEVICE).freeze(precision)
    monkeypatch.setattr(cuda_buffers, "TAIL", cuda_buffers.TAIL | TALL)
    walked = walk(sampler, energy, v.float().to(DEVICE), 4, Philox(KEY), None, False)
    chains = walked.chains
    assert walked.accept_rate is None or 0.3 < float(walked.accept_rate) < 0.95
    assert_standard(z_scores(chains.v, chains.h, truth), n_cases=6)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 1e20])
@pytest.mark.parametrize("precision", ["highest", "fast"])
def test_chains_that_left_the_finite_world_break_the_gradient(precision, wrong):
    """Though operands end at 60,000 deviations, what is summed of u and u² does not."""
    model = random_model(6, 70, 0, dtype=torch.float32).to(DEVICE)
    energy, v = model.freeze(precision), torch.zeros(8, 6, device=DEVICE)
    v[3, 2] = wrong
    walk, rng = Walk(v, 1, 0), Blocks(5, 4, device=DEVICE)
    _, pooled, norm = ENGINE.learn(
        model, energy, PartialGibbs(0.9).moves(energy, 1), Walk(torch.zeros_like(v), 0, -1), walk, rng, 0, centred=False
    )
    assert not norm < 1e15
    assert not pooled.mean_v2[2] < 1e15


def test_far_units_are_summed_as_they_are():
    """A unit of variance 1e-12 a million deviations away: its sum is what it is, at every precision."""
    model = random_model(4, 6, 0, dtype=torch.float32).to(DEVICE)
    with torch.no_grad():
        model.log_var[0], model.W[0], model.mu[0] = -27.6, 0, 0
    for precision in PRECISIONS:
        found = walk(Gibbs(), model.freeze(precision), torch.ones(5, 4).to(DEVICE), 0, Philox(KEY), -1, False)
        torch.testing.assert_close(found.sums.mean().v[0], torch.ones((), dtype=torch.float64, device=DEVICE))


def test_a_graph_holds_all_that_its_walks_use():
    energy = random_model(4, 6, 0, dtype=torch.float32).to(DEVICE).freeze()
    v = torch.zeros(5, 4, device=DEVICE)
    with cuda_buffers.holding() as held:
        ENGINE.learn(
            random_model(4, 6, 0, dtype=torch.float32).to(DEVICE), energy, Gibbs().moves(energy, 1),
            Walk(v, 0, -1), Walk(v, 1, 0), Blocks(5, 1, device=DEVICE), 0, centred=False,
        )  # fmt: skip
    both = next(x for x in held if hasattr(x, "by_row"))
    assert both.data is not both.chains
    assert cuda_buffers._held is None


def test_operands_beyond_half_precision_do_no_harm():
    """A unit of variance 1e-12 that starts a million deviations away, as a constant pixel would."""
    model = random_model(4, 6, 0, dtype=torch.float32).to(DEVICE)
    with torch.no_grad():
        model.log_var[0] = -27.6
        model.W[0] = 0
    walked = walk(Gibbs(), model.freeze("fast"), torch.ones(5, 4).to(DEVICE), 3, Philox(KEY), 0, False)
    assert walked.chains.v.isfinite().all()
    assert all(x.isfinite().all() for x in walked.sums.mean())


def test_a_walk_leaves_nothing_to_the_next_over_its_buffers():
    energy = random_model(5, 7, 0, dtype=torch.float32).to(DEVICE).freeze()
    sampler, v = (
        GibbsLangevin(0.5, adjust_from=0),
        torch.randn(6, 5, generator=torch.Generator().manual_seed(2)).to(DEVICE),
    )
    first, second = (walk(sampler, energy, v, 3, Philox(KEY, 5), 0, False) for _ in range(2))
    for a, b in zip(first.sums.mean(), second.sums.mean(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first.chains.v, second.chains.v)
    assert torch.equal(first.accept_prob, second.accept_prob)


@needs_gpu
@pytest.mark.parametrize("precision", ["highest", "high", "fast"])
@pytest.mark.parametrize(
    "objective",
    [ModifiedCD(GibbsLangevin(0.04), 12), CD(Gibbs(), 2), PCD(Gibbs(), 3, n_chains=64, restart=0.1)],
    ids=repr,
)
def test_training_on_a_gpu_repeats_itself_and_its_graph(objective, precision):
    """Two runs from one seed end with the same bits, though only the first walk of each kind is no graph."""
    ends = []
    for _ in range(2):
        walks.walker.cache_clear()
        model = random_model(30, 40, 0, dtype=torch.float32).cuda()
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
        rows = torch.randn(256, 30, generator=torch.Generator().manual_seed(0)).cuda()
        assert isinstance(engine_for(model.freeze().W, Blocks(0, 1)), fused.Cuda)
        for _ in fit(state, rows, objective, FitOptions(n_updates=10, batch_size=64), precision=precision):
            pass
        ends.append(model.W.detach().cpu())
    assert torch.equal(*ends)


def test_states_that_are_kept_are_not_overwritten():
    """Every walk of one shape goes through the same buffers."""
    energy = random_model(6, 70, 1, dtype=torch.float32).to(DEVICE).freeze()
    moves, rng = Gibbs().moves(energy, 1), Philox(KEY)
    v = torch.zeros(5, 6, device=DEVICE)
    first = ENGINE.run(energy, moves, Walk(v, 1, burn_in=0), rng)
    kept = [x.clone() for x in (*first.chains[:3], *first.sums.sums)]
    ENGINE.run(energy, moves, Walk(v + 3, 1, burn_in=0), rng)
    assert all(torch.equal(a, b) for a, b in zip(kept, (*first.chains[:3], *first.sums.sums), strict=True))


@pytest.mark.parametrize(("n_updates", "at"), [(60, 25), (20, 20)])
def test_divergence_is_found_though_the_device_is_not_waited_for(monkeypatch, n_updates, at):
    """The batch of update 7 breaks the gradient: learning stops there, and is taken back at the next look."""
    monkeypatch.setattr("grbm.learning.guard.is_deferred", lambda energy: True)
    model = random_model(5, 6, 0, dtype=torch.float32).to(DEVICE)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
    rows = torch.randn(64, 5, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    start = {name: p.clone() for name, p in model.state_dict().items()}
    with pytest.raises(DivergenceError):  # noqa: PT012
        for _ in fit(state, rows, CD(Gibbs()), FitOptions(n_updates=n_updates, batch_size=64, average_decay=0.9)):
            if state.update == 7:
                frozen = {name: p.clone() for name, p in model.state_dict().items()}
                rows[3, 2] = torch.nan
            if state.update == 15:
                assert all(torch.equal(frozen[name], p) for name, p in model.state_dict().items())
                rows[3, 2] = 0.0
    assert state.update == at
    assert not any(torch.equal(frozen[name], p) for name, p in start.items())  # it had learned before
    assert all(torch.equal(start[name], p) for name, p in model.state_dict().items())  # good at the last look
    assert all(p.isfinite().all() for p in state.average.parameters())
    state.update = 0
    for _ in fit(state, rows, CD(Gibbs()), FitOptions(n_updates=3, batch_size=64)):  # who catches it can go on
        pass
    assert state.update == 3


@pytest.mark.parametrize("broken", [None, False, True])
def test_the_step_on_a_gpu_is_its_definition(broken):
    models = [random_model(5, 300, 0, dtype=torch.float32).to(DEVICE) for _ in range(2)]
    flag = None if broken is None else torch.tensor(broken, device=DEVICE)
    rate, factor = torch.tensor(0.3, device=DEVICE), torch.tensor(0.5, device=DEVICE)
    for engine, model in zip((ENGINE, Engine()), models, strict=True):
        for p in model.parameters():
            grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())).to(DEVICE)
            p.grad = grad * torch.nan if broken else grad
        with torch.no_grad():
            engine.descend([(p, rate, -0.1) for p in model.parameters()], factor, flag)
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        assert a.min() >= -0.1 or broken
