"""The native way from moments to the gradient, and W as products read it, against PyTorch's; and memory used again."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from grbm import CD, GRBM, FitOptions, Gibbs, TrainState, fit, memory
from grbm.descent import pool, set_gradients
from grbm.distributed import ProcessGroup
from grbm.moments import Moments, MomentSum, ascent, centre
from grbm.objectives import Negative
from grbm.samplers.engines import compiled, native_learning, native_packing

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="there is no compiler here")

SIZES = [(1, 1), (5, 16), (16, 33), (37, 130)]


def sums_of(n_blocks: int, N: int, M: int, count: int, seed: int) -> MomentSum:
    """Sums as a native walk leaves them, whose rows are longer than what they hold."""
    g = torch.Generator().manual_seed(seed)
    rows = native_packing.padded(M)
    vh = (20 * torch.randn(n_blocks, N, rows, generator=g))[..., :M]
    v, v2, h = (20 * torch.randn(n_blocks, n, generator=g)[:, : n - 3] for n in (N + 3, N + 3, M + 3))
    return MomentSum.of(Moments(v, v2.abs(), h.abs(), vh), count)


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
        found, K, n = getattr(packed, name), *matrix.shape
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
