"""The native way from moments to the gradient, and W as products read it, against PyTorch's; and memory used again."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from grbm import (
    CD,
    GRBM,
    PCD,
    FitOptions,
    Gibbs,
    GibbsLangevin,
    GlobalMoves,
    Langevin,
    ModifiedCD,
    PartialGibbs,
    Reference,
    TrainState,
    fit,
    train_step,
)
from grbm.core import memory
from grbm.core.distributed import ALONE, ProcessGroup
from grbm.core.randomness import Blocks
from grbm.learning.descent import clip_factor, descend, phases_at_once, pool, set_gradients, shorten
from grbm.learning.objectives import Negative, positive
from grbm.samplers.chains import Swaps
from grbm.samplers.engines import compiled, native_learning, native_packing
from grbm.samplers.moments import Moments, MomentSum, ascent, centre

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="there is no compiler here")

SIZES = [(1, 1), (5, 16), (16, 33), (37, 130)]


def sums_of(n_blocks: int, N: int, M: int, count: int, seed: int) -> MomentSum:
    """Sums as a native walk leaves them, whose rows are longer than what they hold."""
    g = torch.Generator().manual_seed(seed)
    rows = native_packing.padded(M)
    vh = (20 * torch.randn(n_blocks, N, rows, generator=g))[..., :M]
    v, v2, h = (20 * torch.randn(n_blocks, n, generator=g)[:, : n - 3] for n in (N + 3, N + 3, M + 3))
    return MomentSum(Moments(v, v2.abs(), h.abs(), vh), count)


def machine(N: int, M: int) -> GRBM:
    model, g = GRBM(N, M), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=g))
    return model


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("N", "M"), SIZES)
def test_the_native_gradient_is_that_of_the_definition(N, M, centred):
    model, data, chains = machine(N, M), sums_of(4, N, M, 100, 1), sums_of(3, N, M, 700, 2)
    energy = model.freeze()
    assert native_learning.serves(energy.W, data.sums.vh, chains.sums.vh)
    pooled = pool(data, Negative(chains, None, None, energy.W), ProcessGroup())
    norm = set_gradients(model, energy, pooled, centred=centred)

    exact = machine(N, M).double().freeze()
    uphill = ascent(exact, data.mean().minus(chains.mean()))
    if centred:
        uphill = centre(exact, uphill, data.mean().v, data.mean().h)
    for name, step in uphill.items():
        assert torch.allclose(model.get_parameter(name).grad.double(), -step, rtol=1e-5, atol=1e-5), name
    assert float(norm) == pytest.approx(float(torch.cat([x.flatten() for x in uphill.values()]).norm()), rel=1e-5)
    assert torch.allclose(pooled.mean_h.double(), data.mean().h, rtol=1e-6)
    assert torch.allclose(pooled.mean_v2.double(), chains.mean().v2, rtol=1e-6)


class Beside(ProcessGroup):
    """One of two processes, whose exchange adds what the other one put into its buffer."""

    def __init__(self, other: torch.Tensor | None = None) -> None:
        super().__init__(0, 2)
        self.other, self.put = other, None

    def exchange(self, buffer: torch.Tensor) -> None:
        self.put = buffer.clone()
        if self.other is not None:
            buffer.add_(self.other)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["native", "definition"])
def test_two_processes_find_the_gradient_that_one_finds(dtype, centred):
    """Each has half of the blocks; acceptance is a mean over processes, and swaps are counted over both."""
    N, M = 5, 16
    model = machine(N, M).to(dtype)
    energy = model.freeze()

    def parts(count: int, seed: int) -> list[MomentSum]:
        sums = sums_of(4, N, M, count, seed).sums
        sums = Moments(*(x.to(dtype) for x in sums))
        halves = [MomentSum(Moments(*(x[half] for x in sums)), count // 2) for half in (slice(0, 2), slice(2, 4))]
        return [*halves, MomentSum(sums, count)]

    data, chains = parts(100, 1), parts(700, 2)
    accepted = [2**30 * torch.tensor(x).double() for x in ([30.0, 80.0], [50.0, 20.0])]  # in their units
    swaps = [*(Swaps(x, 100) for x in accepted), Swaps(sum(accepted), 200)]
    rates = [torch.tensor(x, dtype=dtype) for x in (0.2, 0.5, 0.35)]
    negatives = [Negative(*x, energy.W) for x in zip(chains, [None] * 3, rates, strict=True)]
    negatives = [x._replace(swaps=y) for x, y in zip(negatives, swaps, strict=True)]
    other = Beside()
    pool(data[1], negatives[1], other)
    found = {}
    for name, k, group in (("both", 0, Beside(other.put)), ("alone", 2, ProcessGroup())):
        pooled = pool(data[k], negatives[k], group)
        norm = set_gradients(model, energy, pooled, centred=centred)
        found[name] = [pooled.mean_v2, pooled.mean_h, pooled.accept_rate, pooled.swap_rate, norm]
        found[name] += [parameter.grad.clone() for parameter in model.parameters()]
    for one, whole in zip(found["both"], found["alone"], strict=True):
        torch.testing.assert_close(one, whole)
    uphill = ascent(energy, data[2].mean().minus(chains[2].mean()))
    if centred:
        uphill = centre(energy, uphill, data[2].mean().v.to(dtype), data[2].mean().h.to(dtype))
    for name, step in uphill.items():
        torch.testing.assert_close(model.get_parameter(name).grad, -step.to(dtype), rtol=1e-5, atol=1e-5)


def test_without_a_limit_no_gradient_is_shortened():
    assert clip_factor(torch.tensor(1e9), None) == 1.0
    assert clip_factor(torch.tensor(40.0), 10.0) == pytest.approx(0.25)
    assert clip_factor(torch.tensor(4.0), 10.0) == 1.0


def test_a_gradient_that_is_not_waited_for_is_shortened_by_a_tensor(monkeypatch):
    """As on a GPU: the factor is a tensor, and nothing looks at it."""
    monkeypatch.setattr("grbm.learning.descent.is_deferred", lambda x: True)
    model = machine(2, 3)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    norm = torch.tensor(float(sum(parameter.numel() for parameter in model.parameters()))).sqrt()
    factor = clip_factor(norm, 0.5)
    assert isinstance(factor, torch.Tensor)
    assert clip_factor(torch.tensor(4.0), 10.0) == 1.0
    shorten(model, factor)
    assert float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])) == pytest.approx(0.5, rel=1e-5)


def test_pooled_sums_are_exact_and_those_of_any_number_of_threads():
    N, M = 70, 130
    data, chains = sums_of(4, N, M, 100, 1), sums_of(4, N, M, 700, 2)
    found, threads = [], torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            model = machine(N, M)
            pooled = pool(data, Negative(chains, None, None, model.W), ProcessGroup())
            set_gradients(model, model.freeze(), pooled, centred=True)
            found.append([pooled.difference.vh.clone(), *(p.grad for p in model.parameters())])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    exact = data.total().vh * chains.count - chains.total().vh * data.count
    assert torch.equal(found[0][0], exact)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("N", "M"), [(5, 3), (37, 130), (64, 64), (130, 65)])
def test_packed_weights_lie_in_panels_of_64_columns(N, M, half):
    energy = machine(N, M).freeze()
    packed = native_packing.pack(energy, half)
    unit = energy.var.sqrt() if half else energy.var
    of_visible, of_hidden = energy.W / unit[:, None], (energy.W / unit[:, None] if half else energy.W).T
    for name, matrix in (("up", of_visible), ("down", of_hidden)):
        found, K, n = packed[name], *matrix.shape
        if half:  # the first of a pair of rows in the lower bits
            pairs = found.view(torch.bfloat16).view(*found.shape, 2).float()
            found = pairs.movedim(-1, 2).reshape(len(found), -1, 64)
            assert not found[:, K:].any()  # an odd row's partner
            matrix = matrix.bfloat16().float()
        rows = found[:, :K].movedim(0, 1).reshape(K, -1)
        assert torch.equal(rows[:, :n], matrix)
        assert not rows[:, n:].any()


def test_memory_is_used_again_only_when_no_tensor_has_it():
    shape = (3, memory.LARGE // 4)
    first = memory.empty(*shape)
    where, view = first.data_ptr(), first[1, 5:]
    del first
    second = memory.empty(*shape)
    assert second.data_ptr() != where  # a view is alive
    view.fill_(7)
    assert float(second.fill_(1).sum()) == second.numel()
    assert bool((view == 7).all())
    del view
    gc.collect()
    third = memory.empty(*shape)
    assert third.data_ptr() == where
    copied = memory.clone(third.fill_(2).requires_grad_())
    assert torch.equal(copied, third)
    assert not copied.requires_grad
    assert copied.data_ptr() != third.data_ptr()


def test_kept_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(memory, "_free", [])
    monkeypatch.setattr(memory, "KEPT", int(2.5 * memory.LARGE))
    pieces = [memory.empty(memory.LARGE // 4 + 1024 * k) for k in range(4)]
    del pieces
    gc.collect()
    memory.empty(8 * memory.LARGE)
    assert len(memory._free) == 2
    assert sum(map(len, memory._free)) <= memory.KEPT


def test_memory_is_float32_of_the_cpu_whatever_the_defaults():
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            for n in (10, memory.LARGE):
                x = memory.empty(n)
                assert (x.dtype, x.device.type) == (torch.float32, "cpu")
    finally:
        torch.set_default_dtype(torch.float32)


def test_threads_that_learn_at_once_do_not_meet():
    def learn(seed: int) -> torch.Tensor:
        model = GRBM(30, 40, seed=seed)
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05), seed)
        data = torch.randn(64, 30, generator=torch.Generator().manual_seed(seed))
        for _ in fit(state, data, CD(Gibbs()), FitOptions(n_updates=60, batch_size=16)):
            pass
        return model.W.detach().clone()

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(learn, range(4)))
    assert all(torch.equal(a, learn(k)) for k, a in enumerate(together))


def test_parameters_of_ones_own_are_left_alone():
    """A machine with a parameter more than a GRBM has learns the four."""
    N, M = 5, 16
    model, data, chains = machine(N, M), sums_of(4, N, M, 100, 1), sums_of(3, N, M, 700, 2)
    model.extra = torch.nn.Parameter(torch.ones(2))
    set_gradients(
        model, model.freeze(), pool(data, Negative(chains, None, None, model.W), ProcessGroup()), centred=True
    )
    assert model.extra.grad is None
    assert model.W.grad is not None


OBJECTIVES = [
    ModifiedCD(Gibbs(), 3),
    ModifiedCD(GibbsLangevin(0.1, adjust_from=1), 4, burn_in=1, n_chains=24),
    CD(Langevin(0.05, adjust_from=0), 3, probabilities=True),
    CD(Langevin(0.05), 2),
    PCD(PartialGibbs(0.8), 3, n_chains=40, restart=0.3, probabilities=True),
]


def learned(objective, options: FitOptions, N: int, *, at_once: bool, monkeypatch, precision="highest"):
    """The model, the metrics and the persistent chains of five updates."""
    calls, real = [], native_learning.learn
    monkeypatch.setattr(native_learning, "learn", lambda *args, **options: calls.append(1) or real(*args, **options))
    model, g = machine(N, 300 if N > 3 else 70), torch.Generator().manual_seed(6)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05), seed=3)
    rows = torch.randn(100, N, generator=g)
    with monkeypatch.context() as patched:
        if not at_once:
            patched.setattr("grbm.learning.training.phases_at_once", lambda *args, **options: None)
        metrics = list(fit(state, rows, objective, options, precision=precision))
    assert len(calls) == (5 if at_once else 0)
    return model, metrics, state.persistent


def jumps(N: int, K: int = 3) -> GlobalMoves:
    """Chains that jump to a mixture of N units."""
    means = torch.randn(K, N, generator=torch.Generator().manual_seed(K))
    return GlobalMoves(Reference(torch.full((K,), 1 / K), means, torch.eye(N).expand(K, N, N)), 2)


@pytest.mark.parametrize("N", [3, 37])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_an_update_of_chains_that_jump_is_that_of_its_parts_bit_for_bit(N, n_steps, monkeypatch):
    for probabilities in (True, False):
        objective, found = PCD(jumps(N), n_steps, 40, probabilities=probabilities), []
        for at_once in (True, False):
            options = FitOptions(5, 20, centred=True)
            model, metrics, chains = learned(objective, options, N, at_once=at_once, monkeypatch=monkeypatch)
            each = [x for m in metrics for x in (*m[:3], m.negative.v, *m.negative.moments)]
            found.append([*model.parameters(), chains, *each])
        for x, y in zip(*found, strict=True):
            assert torch.equal(x, y)


def test_jumps_follow_their_mixture(monkeypatch):
    """A mixture may change between updates of a model, in its numbers and its size."""
    models = [machine(5, 16) for _ in range(2)]
    states = [TrainState(m, torch.optim.SGD(m.parameters(), lr=0.05)) for m in models]
    rows = torch.randn(32, 5, generator=torch.Generator().manual_seed(1))
    for K in (3, 2, 3):
        train_step(states[0], PCD(jumps(5, K), 1), rows)
        with monkeypatch.context() as patched:
            patched.setattr("grbm.learning.training.phases_at_once", lambda *args, **options: None)
            train_step(states[1], PCD(jumps(5, K), 1), rows)
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))


@pytest.mark.parametrize("precision", ["highest", "fast"])
@pytest.mark.parametrize("N", [3, 37])  # few visible units are treated one by one
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: f"{type(o).__name__}-{type(o.sampler).__name__}")
def test_an_update_at_once_is_that_of_its_parts_bit_for_bit(objective, N, precision, monkeypatch):
    for options in ({}, {"centred": True, "clip_norm": 0.5}, {"spectral_norm": 0.3, "centred": True}):
        whole, parts = (
            learned(objective, FitOptions(5, 20, **options), N, at_once=x, monkeypatch=monkeypatch, precision=precision)
            for x in (True, False)
        )
        for name, parameter in whole[0].named_parameters():
            assert torch.equal(parameter, parts[0].get_parameter(name)), name
        for a, b in zip(whole[1], parts[1], strict=True):  # each update's own, whatever came after it
            found = [(*m[:3], m.negative.v, *m.negative.moments) for m in (a, b)]
            for x, y in zip(*found, strict=True):
                assert (x is None and y is None) or torch.equal(x, y)
            assert (a.accept_rate is None) == (objective.sampler.moves(whole[0].freeze(), 3).adjust_from is None)
        assert (whole[2] is None) == (parts[2] is None)
        assert whole[2] is None or torch.equal(whole[2], parts[2])


def test_the_mean_square_of_chains_is_that_of_the_parts():
    """It is what an error of divergence names."""
    model, seen = machine(5, 16), []
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05))
    check = state.guard.check
    state.guard.check = lambda *args: seen.append(args[-1]) or check(*args)
    metrics = train_step(state, ModifiedCD(Gibbs(), 2), torch.randn(32, 5, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(seen[0], metrics.negative.moments.v2.float())


def test_an_update_at_once_follows_its_sizes(monkeypatch):
    """Batches, steps and moves may change between updates of a model; so may the gradient's tensors."""
    model = machine(5, 16)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05))
    other = machine(5, 16)
    apart = TrainState(other, torch.optim.SGD(other.parameters(), lr=0.05))
    rows = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    turns = [(ModifiedCD(Gibbs(), 2), 64), (CD(Langevin(0.05), 3), 32), (ModifiedCD(Gibbs(), 2), 64), (CD(Gibbs()), 16)]
    for objective, n in turns:
        train_step(state, objective, rows[:n])
        with monkeypatch.context() as patched:
            patched.setattr("grbm.learning.training.phases_at_once", lambda *args, **options: None)
            train_step(apart, objective, rows[:n])
        state.optimizer.zero_grad(set_to_none=True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    for m in (model, other):  # it grows
        m.W, m.b = (torch.nn.Parameter(torch.cat([p.data] * 3, -1)) for p in (m.W, m.b))
    grown = [TrainState(m, torch.optim.SGD(m.parameters(), lr=0.05)) for m in (model, other)]
    train_step(grown[0], CD(Gibbs()), rows[:16])
    with monkeypatch.context() as patched:
        patched.setattr("grbm.learning.training.phases_at_once", lambda *args, **options: None)
        train_step(grown[1], CD(Gibbs()), rows[:16])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_objectives_and_samplers_of_ones_own_are_not_passed_over(monkeypatch):
    """An objective with a negative phase of its own, and a machine with more parameters, take the way of the parts."""

    class Own(CD):
        def negative(self, *args):
            calls.append(self)
            return super().negative(*args)

    calls: list[CD] = []
    model = machine(5, 16)
    train_step(TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05)), Own(Gibbs()), torch.randn(8, 5))
    assert len(calls) == 1
    energy, rng, same = model.freeze(), Blocks(0, 1), Blocks(0, 1)
    assert phases_at_once(model, energy, CD(Gibbs()), torch.randn(8, 5), None, rng, ALONE, centred=False) is not None
    positive(energy, torch.randn(8, 5), same, probabilities=False)
    CD(Gibbs()).negative(energy, torch.randn(8, 5), None, same)
    assert rng.draw == same.draw > 0  # whoever draws next draws the same
    model.extra = torch.nn.Linear(1, 1)
    assert phases_at_once(model, energy, CD(Gibbs()), torch.randn(8, 5), None, rng, ALONE, centred=False) is None


@pytest.fixture(name="descents")
def fixture_descents(monkeypatch):
    """A call for each native step."""
    calls, real = [], native_learning.descend
    monkeypatch.setattr(native_learning, "descend", lambda *args: calls.append(1) or real(*args))
    return calls


@pytest.mark.parametrize("factor", [1.0, 0.37])
def test_the_native_step_is_that_of_plain_sgd(factor, descents):
    """Of two groups with rates of their own; to the rounding of one multiplication and addition."""
    models = [machine(33, 700) for _ in range(2)]
    for model in models:
        for k, parameter in enumerate(model.parameters()):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(k))
    groups = [[{"params": [m.log_var], "lr": 0.3}, {"params": [m.W, m.b, m.mu]}] for m in models]
    plain, looped = (torch.optim.SGD(g, lr=0.02) for g in groups)
    descend(models[0], plain, factor, 0.5)
    assert len(descents) == 1
    hook = looped.register_step_pre_hook(lambda *args: None)  # what hangs on the optimizer is heeded
    descend(models[1], looped, factor, 0.5)
    hook.remove()
    assert len(descents) == 1
    for a, b in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-7, atol=1e-7)
        assert torch.equal(a.grad, b.grad)
    assert float(models[0].var.detach().min()) == pytest.approx(0.5)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}])
def test_an_optimizer_that_does_more_is_asked_itself(options, descents):
    model, other = machine(5, 16), machine(5, 16)
    for m in (model, other):
        for parameter in m.parameters():
            parameter.grad = torch.ones_like(parameter)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, **options) for m in (model, other)]
    for _ in range(2):  # momentum begins with the second
        descend(model, optimizers[0], 0.5, 1e-8)
        for parameter in other.parameters():
            parameter.grad.mul_(0.5)
        optimizers[1].step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert not descents


def test_whatever_hangs_on_a_step_or_stays_out_of_it_is_heeded(descents):
    """Hooks of all optimizers, a step that a schedule has wrapped, parameters of other shapes and other owners."""
    model = machine(5, 16)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    calls = []
    hook = register_optimizer_step_post_hook(lambda *args: calls.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    descend(model, optimizer, 1.0, 1e-8)
    hook.remove()
    assert len(calls) == 1
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    descend(model, optimizer, 1.0, 1e-8)
    some = torch.optim.SGD([model.W, model.b, model.mu], lr=0.1)
    descend(model, some, 1.0, 3.0)
    assert float(model.var.detach().min()) == pytest.approx(3.0)  # though the optimizer does not have it
    assert not descents
    model.extra = torch.nn.Parameter(torch.ones(()))
    train_step(TrainState(model, torch.optim.SGD(model.parameters(), lr=0.1)), CD(Gibbs()), torch.randn(8, 5))
    assert float(model.extra) == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_data_may_be_drawn_where_chains_count_by_their_probabilities(at_once, monkeypatch):
    """Whole numbers of rows have a hidden unit on, and of chains a fraction; without draws of the data both have."""
    if not at_once:
        monkeypatch.setattr("grbm.learning.training.phases_at_once", lambda *args, **options: None)
    rows = torch.randn(64, 5, generator=torch.Generator().manual_seed(1))
    for data_draws in (True, False):
        model = machine(5, 16)
        state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05))
        metrics = train_step(state, CD(Gibbs(), probabilities=True, data_draws=data_draws), rows)
        on, under_chains = 64 * metrics.data_mean_h, 64 * metrics.negative.moments.h
        assert bool(((on - on.round()).abs() < 1e-4).all()) == data_draws
        assert not bool(((under_chains - under_chains.round()).abs() < 1e-4).all())
