"""The native walk against its definition in PyTorch, and the random numbers that both draw."""

import ctypes
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import time

import pytest
import torch

from grbm import GRBM, Base, Gibbs, GibbsLangevin, Langevin, ParallelTempering, PartialGibbs, UserError, sample
from grbm.core import memory
from grbm.core.randomness import Blocks, Philox, generator, philox
from grbm.evaluate import exact
from grbm.model.censoring import Interval
from grbm.samplers.chains import Chains, Walk
from grbm.samplers.conditional import Conditional
from grbm.samplers.engines import compiled, native_packing, structs
from grbm.samplers.engines.native import Native
from grbm.samplers.moves import Moves
from grbm.samplers.sampling import _states_after, run_chains, step_by_step
from tests.helpers import agree, assert_standard, exact_chains, own_moments, random_model, share_z, z_bound, z_scores

needs_compiler = pytest.mark.skipif(compiled.library() is None, reason="no C compiler here, or GRBM_ENGINE=pytorch")
KEY = 0x0123456789ABCDEF
NATIVE, LIKE = Native(), torch.empty(0)
SAMPLERS = [
    Gibbs(),
    PartialGibbs(0.7),
    GibbsLangevin(0.1),
    GibbsLangevin(0.05, adjust_from=0, per_unit=True),
    GibbsLangevin(0.05, adjust_from=2, temperature=2.0),
    Langevin(0.05),
    Langevin(0.05, per_unit=True),
    Langevin(0.4, adjust_from=0),
    GibbsLangevin(1.0, adjust_from=0, temperature=8.0, accept_temperature=1.0),
    GibbsLangevin(0.05, adjust_from=1, temperature=3.0, joint=True),
]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory that is read before it is written is no number."""
    monkeypatch.setattr(memory, "empty", lambda *shape: torch.full(shape, torch.nan, dtype=torch.float32, device="cpu"))


def test_philox_gives_the_published_numbers():
    """Known answers of the Random123 distribution for philox4x32-7."""
    for counter, key, expected in (
        ([0] * 4, 0, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
        ([0xFFFFFFFF] * 4, (1 << 64) - 1, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0A4093822,
            [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A],
        ),
    ):
        assert [int(x) for x in philox([torch.tensor(c) for c in counter], key)] == expected


def test_a_chains_numbers_are_its_own():
    like = torch.zeros(1)
    for name in ("uniform", "normal"):
        whole = getattr(Philox(KEY), name)((3, 8, 70), like)
        assert torch.equal(getattr(Philox(KEY, first_chain=5), name)((3, 3, 70), like), whole[:, 5:])
        assert torch.equal(getattr(Philox(KEY), name)((3, 8, 20), like), whole[..., :20])
        rng = Philox(KEY)
        first, second = getattr(rng, name)((2, 70), like), getattr(rng, name)((2, 70), like)
        assert torch.equal(first, whole[0, :2])
        assert not torch.equal(first, second)
        assert rng.draw == 2


def normals(kind: str) -> torch.Tensor:
    """Standard normal draws (steps, chains, units) as the native walk makes them, or as they are defined."""
    steps, chains, units = 40, 200, 100
    if kind == "pytorch":
        rng = Philox(KEY)
        return torch.stack([rng.normal((chains, units), torch.zeros(1)) for _ in range(steps)])
    model = random_model(units, 3, 0, dtype=torch.float32)
    with torch.no_grad():
        model.W.zero_()
        model.mu.zero_()
        model.log_var.zero_()
    return sample(model, Gibbs(), n_chains=chains, n_steps=steps, keep_every=1).v


@pytest.mark.parametrize("kind", ["pytorch", pytest.param("native", marks=needs_compiler)])
def test_normal_draws_are_normal_and_independent(kind):
    """800,000 draws: moments, tails, and correlations along steps, chains and units."""
    x = normals(kind).double()
    n, zs = x.numel(), []
    for power, expected, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        zs.append((float(x.pow(power).mean()) - expected) / math.sqrt(spread / n))
    for limit in (0.5, 1.0, 2.0, 3.0, 4.0):
        p = math.erfc(limit / math.sqrt(2))
        zs.append(share_z((x.abs() > limit).double().mean(), p, n))
    for axis in range(3):
        for lag in (1, 2, 15, 16, 17, 32, 64):
            if lag < x.shape[axis]:
                a, b = x.narrow(axis, 0, x.shape[axis] - lag), x.narrow(axis, lag, x.shape[axis] - lag)
                for product in (a * b, (a * a - 1) * (b * b - 1) / 2):
                    zs.append(float(product.mean()) * math.sqrt(product.numel()))
    assert_standard(zs, n_cases=2)


def bits(kind: str, p: float) -> torch.Tensor:
    """Hidden units (steps, chains, units) that are on with probability p."""
    steps, chains, units = 40, 200, 100
    if kind == "pytorch":
        rng = Philox(KEY)
        return torch.stack([rng.uniform((chains, units), torch.zeros(1)) < p for _ in range(steps)]).double()
    model = random_model(3, units, 0, dtype=torch.float32)
    with torch.no_grad():
        model.W.zero_()
        model.b.fill_(math.log(p / (1 - p)))
    return sample(model, Gibbs(), n_chains=chains, n_steps=steps, keep_every=1).h.double()


@pytest.mark.parametrize("p", [0.5, 0.9, 0.01, 1e-4])
@pytest.mark.parametrize("kind", ["pytorch", pytest.param("native", marks=needs_compiler)])
def test_hidden_units_are_on_as_often_as_they_should_be_and_independent(kind, p):
    """800,000 draws: frequency, and correlations along steps, chains and units."""
    h = bits(kind, p)
    deviation = math.sqrt(p * (1 - p))
    n_cases = 2 * 4 * 15  # engines, probabilities, and 15 statistics of each
    assert_standard(share_z(h.mean(), p, h.numel()), n_cases)
    z = (h - p) / deviation
    for axis in range(3):
        for lag in (1, 2, 16, 32, 64):
            if lag < z.shape[axis]:
                product = z.narrow(axis, 0, z.shape[axis] - lag) * z.narrow(axis, lag, z.shape[axis] - lag)
                # at p = 1e-4 the products are far from normal: 0.008 pairs are expected, and 2 would be too many
                bound = max(z_bound(n_cases), 0.5 / p)
                assert abs(float(product.mean())) < bound / math.sqrt(product.numel()), (axis, lag)


@needs_compiler
@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("n", [1, 16, 65, 200])
def test_native_draws_are_those_of_the_definition(n, kind):
    rng, same = Philox(KEY, 5, 3), Philox(KEY, 5, 3)
    found = NATIVE.draw(kind, (40, n), LIKE, rng)
    expected = getattr(same, kind)((40, n), torch.empty(0, dtype=torch.float64))
    assert rng.draw == same.draw
    assert torch.allclose(found.double(), expected, atol=2e-6)
    blocks = Blocks(KEY, 4)
    blocks.draw = 3
    assert torch.equal(NATIVE.draw(kind, (40, n), LIKE, blocks), NATIVE.draw(kind, (40, n), LIKE, Philox(KEY, 0, 3)))
    part = Blocks(KEY, 4, range(2, 4))  # what a block draws does not depend on who holds it
    part.draw = 3
    assert torch.equal(NATIVE.draw(kind, (20, n), LIKE, part), NATIVE.draw(kind, (40, n), LIKE, Philox(KEY, 0, 3))[20:])


@needs_compiler
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize(("N", "M", "C"), [(1, 1, 1), (2, 256, 100), (17, 70, 7), (64, 128, 25), (130, 65, 13)])
def test_the_native_walk_is_its_definition(sampler, N, M, C):
    """From the same random numbers: every unit of every chain, all sums, the acceptance; tiles of every width."""
    model = random_model(N, M, 3, strength=0.2 * N**-0.5, dtype=torch.float32)  # so that units turn on and off
    energy, v = model.freeze(), torch.randn(C, N, generator=torch.Generator().manual_seed(1))
    for n_steps, burn_in, probabilities in (
        (0, -1, True),
        (1, 0, False),
        (5, 2, True),
        (12, -1, False),
        (12, 11, False),
    ):
        options = {"burn_in": burn_in, "probabilities": probabilities}
        walked = [
            run_chains(energy, sampler, v, n_steps, Philox(KEY, 5), **options),
            step_by_step(energy, sampler, Walk(v, n_steps, **options), Philox(KEY, 5)),
        ]
        agree(*walked)
        own = own_moments(
            NATIVE, energy, sampler.moves(energy, max(1, n_steps)), v, n_steps, burn_in, probabilities, KEY
        )
        for walk in walked:
            assert walk.sums.count == C * (n_steps - burn_in)
        for a, b in zip(walked[0].sums.mean(), own, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.fixture(params=[1, 2], ids=["vectors", "matrix units"])
def half_products(request, monkeypatch):
    """Native code with products of bfloat16: this processor's own where it chooses them, else as far as it has them."""
    if (own := compiled.library()) is not None and own.grbm_half() == request.param:
        return
    # the emulation is for tests alone: what the optimizer makes of it says nothing of the products that users have
    monkeypatch.setattr(compiled, "FLAGS", ["-O1", *compiled.FLAGS[1:], "-DEMULATED", f"-DCHOSEN={request.param}"])
    emulating = compiled.library.__wrapped__()
    assert emulating.grbm_half() == request.param
    monkeypatch.setattr(compiled, "library", lambda: emulating)


@needs_compiler
@pytest.mark.parametrize("sampler", [PartialGibbs(0.7), GibbsLangevin(0.05, adjust_from=0), Langevin(0.05)], ids=repr)
@pytest.mark.parametrize(("N", "M", "C"), [(5, 7, 5), (17, 70, 7), (64, 128, 25), (131, 65, 13), (150, 190, 50)])
@pytest.mark.usefixtures("half_products")
def test_half_precision_is_the_walk_up_to_its_rounding(sampler, N, M, C):
    """Operands of 8 bits move logits by about 1e-2: one draw in some hundreds goes elsewhere, and its chain with it."""
    model = random_model(N, M, 3, dtype=torch.float32)
    with torch.no_grad():  # weights whose units turn on as often as off, whatever their number
        model.W.mul_(0.5 / N**0.5)
        model.b.copy_(-(model.mu / model.var) @ model.W)
    v = torch.randn(C, N, generator=torch.Generator().manual_seed(1))
    for n_steps, burn_in, probabilities in ((0, -1, True), (1, 0, False), (3, 1, True), (8, -1, False)):
        options, energy = {"burn_in": burn_in, "probabilities": probabilities}, model.freeze("fast")
        fast = run_chains(energy, sampler, v, n_steps, Philox(KEY, 5), **options)
        full = step_by_step(model.freeze(), sampler, Walk(v, n_steps, **options), Philox(KEY, 5))
        own = own_moments(
            NATIVE, energy, sampler.moves(energy, max(1, n_steps)), v, n_steps, burn_in, probabilities, KEY
        )
        if n_steps <= 1:  # later a unit that went elsewhere has moved others
            apart = (fast.chains.h_prob - full.chains.h_prob).abs()
            assert apart.max() < (0.02, 0.3)[n_steps]
            assert apart.mean() < 0.01
            assert (fast.chains.h != full.chains.h).double().mean() < 0.02
        assert fast.sums.count == full.sums.count
        for a, b in zip(fast.sums.mean(), own, strict=True):
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


@needs_compiler
@pytest.mark.usefixtures("half_products")
def test_half_precision_of_several_replicas_follows_one_of_a_single_one():
    energy, v = random_model(70, 40, 3, dtype=torch.float32).freeze("fast"), torch.randn(4, 8, 70)
    alone = run_chains(energy, Gibbs(), v[0], 2, Philox(KEY)).chains
    together = run_chains(energy, Gibbs(), v, 2, Philox(KEY)).chains
    torch.testing.assert_close(together.v[0], alone.v)
    assert together.v.isfinite().all()


@needs_compiler
@pytest.mark.usefixtures("half_products")
def test_half_precision_of_chains_within_limits_is_their_walk_up_to_its_rounding():
    """Matrix units serve them too, which end the process where a thread has not given its tiles a shape."""
    N, M, C = 150, 190, 50
    model, rng = random_model(N, M, 3, dtype=torch.float32), torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.W.mul_(0.5 / N**0.5)
        model.b.copy_(-(model.mu / model.var) @ model.W)
    v = torch.randn(C, N, generator=rng)
    is_open = torch.rand(C, N, generator=rng) < 0.4
    sampler = Conditional.of(Interval(*(torch.where(is_open, end, v) for end in (-torch.inf, -0.2))))
    fast, full = (sampler.at_once(model.freeze(name), Walk(v, 1), Philox(KEY, 5)) for name in ("fast", "highest"))
    apart = (fast.chains.h_prob - full.chains.h_prob).abs()
    assert 0 < apart.max() < 0.3
    assert apart.mean() < 0.01
    assert (fast.chains.h != full.chains.h).double().mean() < 0.02


@needs_compiler
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="processors of another kind")
@pytest.mark.parametrize("processor", ["x86-64", "haswell", "skylake-avx512", "cooperlake", "sapphirerapids"])
def test_the_code_compiles_for_every_processor(processor):
    """Each has parts of its own in it, and other headers: matrix units are asked for by a system call."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    command = [*str(compiler).split(), f"-march={processor}", "-fsyntax-only", "-Wall", "-Werror=implicit", "-x", "c"]
    if subprocess.run([*command, "-"], input="", capture_output=True, text=True).returncode:
        pytest.skip("the compiler knows no such processor")
    for source in compiled.SOURCES:
        done = subprocess.run([*command, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_why_code_does_not_compile_is_the_compilers_word():
    said = "a.c:91:13: error: conflicting types for 'x'\n   91 | static void x(void)\n      |             ^"
    assert "conflicting types" in compiled._why(subprocess.CalledProcessError(1, "cc", stderr=said))
    assert "no C compiler" in compiled._why(OSError("no C compiler found"))


@pytest.mark.whole
@needs_compiler
def test_code_for_matrix_units_compiles_with_the_shapes_of_its_tiles(tmp_path):
    """Nobody's tests may run on a processor that has them: at least the configuration is stored before it is loaded."""
    made = tmp_path / "native.s"
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    command = [*str(compiler).split(), "-O3", "-march=sapphirerapids", "-S", "-o", str(made), str(compiled.SOURCES[0])]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the compiler knows no such processor")
    code = made.read_text()
    assert "tdpbf16ps" in code
    before = code[: code.index("ldtilecfg")].splitlines()[-40:]
    sixteen = str(0x1010101010101010)  # eight tiles of 16 rows, a byte each: as one number, or from a table
    assert any(sixteen in line or ".LC" in line for line in before)


@needs_compiler
@pytest.mark.parametrize("sampler", [Gibbs(), GibbsLangevin(0.15, adjust_from=0)], ids=repr)
@pytest.mark.usefixtures("half_products")
def test_half_precision_does_not_drift_visibly(sampler):
    """20,000 chains from the exact distribution: every moment is still there after 8 steps."""
    model = random_model(6, 5, 3)
    truth = exact.moments(model)
    v, _ = exact_chains(model, 20_000, seed=0)
    chains = sample(model.float(), sampler, v0=v, n_steps=8, seed=1, precision="fast")
    assert_standard(z_scores(chains.v, chains.h, truth), n_cases=4)  # samplers, kinds of half precision


@needs_compiler
@pytest.mark.parametrize("sampler", [Gibbs(), GibbsLangevin(0.05, adjust_from=0), Langevin(0.05)], ids=repr)
def test_tempered_walks_agree(sampler):
    """Replicas with their own variances, biases and gains, from given hidden units."""
    model = random_model(20, 33, 1, dtype=torch.float32)
    ladder = model.freeze().temper(torch.linspace(0, 1, 4), Base(torch.ones(20), torch.full((20,), 2.0)))
    v = torch.randn(4, 9, 20, generator=torch.Generator().manual_seed(2))
    found = run_chains(ladder, sampler, v, 3, Philox(KEY))
    agree(found, step_by_step(ladder, sampler, Walk(v, 3), Philox(KEY)))
    chains = step_by_step(ladder, sampler, Walk(v, 0), Philox(KEY)).chains
    moves = sampler.moves(ladder, 3)
    given = NATIVE.run(ladder, moves, Walk(chains.v, 3, given=chains), Philox(KEY, draw=1)).chains
    torch.testing.assert_close(given.v, found.chains.v)


LADDER_SIZES = [(1, 1, 3, 2), (2, 256, 20, 5), (17, 70, 7, 3), (64, 128, 25, 8), (130, 65, 13, 4)]


@needs_compiler
@pytest.mark.parametrize("inner", [Gibbs(), PartialGibbs(0.5)], ids=repr)
@pytest.mark.parametrize(("N", "M", "C", "R"), LADDER_SIZES)
def test_a_native_ladder_is_its_definition(inner, N, M, C, R):
    """From the same random numbers: every unit of every replica, the swaps, the sums of the states at β = 1."""
    model = random_model(N, M, 3, strength=0.2 * N**-0.5, dtype=torch.float32)  # so that units turn on and off
    rng = torch.Generator().manual_seed(1)
    base = Base(torch.randn(N, generator=rng), torch.rand(N, generator=rng) + 0.5)
    energy, sampler, v = model.freeze(), ParallelTempering(base, R, sampler=inner), torch.randn(C, N, generator=rng)
    for n_steps, burn_in, probabilities in (
        (0, -1, True),
        (1, 0, False),
        (6, 2, True),
        (5, None, False),
        (7, -1, True),
    ):
        options = {"burn_in": burn_in, "probabilities": probabilities}
        one = run_chains(energy, sampler, v, n_steps, Philox(KEY, 5), **options)
        two = step_by_step(energy, sampler, Walk(v, n_steps, **options), Philox(KEY, 5))
        agree(one._replace(chains=one.chains.state), two._replace(chains=two.chains.state))
        for a, b in zip(one.chains[:3], one.chains.state[:3], strict=True):
            assert torch.equal(a, b[-1])
        if n_steps:
            assert one.swaps.n_proposed == two.swaps.n_proposed == n_steps * C
            torch.testing.assert_close(one.swaps.rate(), two.swaps.rate(), rtol=0, atol=0.01 if N * M < 5000 else 0.001)
        assert (one.sums is None) == (burn_in is None)
        if one.sums is not None:
            assert one.sums.count == two.sums.count
            for a, b in zip(one.sums.mean(), two.sums.mean(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@needs_compiler
def test_a_native_ladder_in_stretches_or_by_fewer_chains_is_the_same():
    """Going on from given states, and a chain without its neighbours: with the same numbers nothing changes."""
    energy = random_model(5, 20, 1, dtype=torch.float32).freeze()
    sampler = ParallelTempering(Base(torch.zeros(5), torch.full((5,), 2.0)), 4)
    v = torch.randn(4, 30, 5, generator=torch.Generator().manual_seed(0))
    whole = sampler.at_once(energy, Walk(v, 9), Philox(KEY)).chains
    rng = Philox(KEY)
    first = sampler.at_once(energy, Walk(v, 4), rng).chains
    second = sampler.at_once(energy, Walk(v, 5, given=first), rng).chains
    torch.testing.assert_close(second.state.v, whole.state.v)
    few = sampler.at_once(energy, Walk(v[:, 7:9], 9), Philox(KEY, 7)).chains
    torch.testing.assert_close(few.state.v, whole.state.v[:, 7:9])
    kept = [chains.v for chains in _states_after((0, 4, 9), energy, sampler, v, 9, Philox(KEY))]
    for a, b in zip(kept, (v[-1], first.v, whole.v), strict=True):
        torch.testing.assert_close(a, b)


@needs_compiler
def test_a_native_ladder_makes_no_swap_of_hardly_any_probability():
    """From a base of hardly any width far from the model: exp(−5,000) and less."""
    base = Base(torch.full((2,), 100.0), torch.full((2,), 1e-4))
    model = random_model(2, 3, 0, dtype=torch.float32)
    v = torch.tensor([100.0, 0.0])[:, None, None].expand(2, 8, 2).contiguous()
    walked = ParallelTempering(base, 2).at_once(model.freeze(), Walk(v, 5), Blocks(0, 1))
    assert walked.swaps.rate().tolist() == [0]


@needs_compiler
def test_a_native_ladder_does_not_drift():
    """Replicas that start at the exact distribution of each rung stay there: 40,000 chains."""
    model, C = random_model(3, 5, 2), 40_000
    base = Base(torch.tensor([0.5, 0.0, -0.5]).double(), torch.tensor([1.5, 2.0, 1.0]).double())
    sampler = ParallelTempering(base, 4, sampler=PartialGibbs(0.3))
    rungs = [model.freeze().temper(beta, base).plain() for beta in sampler.betas()]
    models = []
    for rung in rungs:
        models.append(GRBM(3, 5, dtype=torch.float64))
        models[-1].load_state_dict({"W": rung.W, "b": rung.b, "mu": rung.mu, "log_var": rung.var.log()})
    v = torch.stack([exact_chains(m, C, r)[0] for r, m in enumerate(models)]).float()
    energy = model.float().freeze()
    walked = sampler.at_once(energy, Walk(v, 12), Blocks(4, 4))
    for m, v_end, h_end in zip(models, walked.chains.state.v, walked.chains.state.h, strict=True):
        assert_standard(z_scores(v_end, h_end, exact.moments(m)), n_cases=4)
    assert 0.1 < float(walked.swaps.rate().min()) < 1


@needs_compiler
def test_what_a_chain_does_depends_on_nothing_else():
    """The same bits for any number of threads, alone or in company, in one walk or in stretches."""
    model = random_model(50, 90, 0, dtype=torch.float32)
    energy, v = model.freeze(), torch.randn(96, 50, generator=torch.Generator().manual_seed(1))
    sampler = GibbsLangevin(0.02, adjust_from=3)
    threads = torch.get_num_threads()
    try:
        walks = []
        for torch_threads in (1, 3):
            torch.set_num_threads(torch_threads)
            walks.append(run_chains(energy, sampler, v, 8, Blocks(KEY, 4), burn_in=0))
    finally:
        torch.set_num_threads(threads)
    whole = walks[0]
    assert torch.equal(whole.chains.v, walks[1].chains.v)
    assert all(torch.equal(a, b) for a, b in zip(whole.sums.sums, walks[1].sums.sums, strict=True))
    part = run_chains(energy, sampler, v[24:48], 8, Blocks(KEY, 4, range(1, 2)), burn_in=0)
    assert torch.equal(part.chains.v, whole.chains.v[24:48])
    assert all(torch.equal(a[0], b[1]) for a, b in zip(part.sums.sums, whole.sums.sums, strict=True))
    assert torch.equal(run_chains(energy, sampler, v[:5], 8, Philox(KEY)).chains.v, whole.chains.v[:5])
    for kept in (1, 2, 4):
        states = sample(model, sampler, v0=v, n_steps=8, keep_every=kept, seed=4)
        assert torch.equal(states.h[-1], sample(model, sampler, v0=v, n_steps=8, seed=4).h)


@needs_compiler
def test_numbers_that_are_not_finite_stay_so():
    """A chain that leaves the finite world must be seen by who learns from it, and leave its neighbours alone."""
    energy = random_model(5, 7, 0, dtype=torch.float32).freeze()
    v = torch.zeros(4, 5)
    v[2, 1] = torch.nan
    walked = run_chains(energy, GibbsLangevin(0.1), v, 3, Blocks(KEY, 1), burn_in=0)
    assert walked.chains.v.isfinite().all(1).tolist() == [True, True, False, True]
    assert not walked.sums.mean().v.isfinite().all()
    stuck = run_chains(energy, GibbsLangevin(0.1, adjust_from=0), v, 3, Blocks(KEY, 1))
    assert stuck.chains.v[2].isnan().sum() == 1  # every proposal was rejected


@needs_compiler
def test_a_bias_that_is_not_a_number_is_not_made_one():
    model = random_model(3, 4, 0, dtype=torch.float32)
    with torch.no_grad():
        model.b[1] = torch.nan
    chains = run_chains(model.freeze(), Gibbs(), torch.zeros(2, 3), 2, Blocks(KEY, 1)).chains
    assert chains.h_prob.isnan().tolist() == [[False, True, False, False]] * 2


@needs_compiler
def test_what_does_not_fit_is_refused():
    energy = random_model(3, 4, 0, dtype=torch.float32).freeze()
    with pytest.raises(ValueError, match="10 chains cannot be shared evenly by 3 blocks"):
        run_chains(energy, Gibbs(), torch.zeros(10, 3), 2, Blocks(KEY, 3), burn_in=0)
    with pytest.raises(ValueError, match="A walk of 3 steps"):
        NATIVE.run(energy, Langevin(0.1).moves(energy, 2), Walk(torch.zeros(4, 3), 3), Philox(KEY))
    with pytest.raises(ValueError, match="Replicas"):
        run_chains(energy, Gibbs(), torch.zeros(2, 4, 3), 2, Philox(KEY), burn_in=0)


@needs_compiler
def test_other_types_and_layouts_are_taken_as_they_are():
    """Moves in float64, chains with strides, replicas under one energy in either precision."""
    energy = random_model(20, 30, 0, dtype=torch.float32).freeze()
    moves = GibbsLangevin(0.05).moves(energy, 4)
    v = torch.randn(20, 12, generator=torch.Generator().manual_seed(0)).T
    plain = NATIVE.run(energy, moves, Walk(v.contiguous(), 4), Philox(KEY)).chains.v
    double = moves._replace(shrink=moves.shrink.double(), noise_std=moves.noise_std.double())
    assert torch.equal(NATIVE.run(energy, double, Walk(v, 4), Philox(KEY)).chains.v, plain)
    for precision in ("highest", "fast"):
        energy.precision = precision
        replicas = NATIVE.run(energy, moves, Walk(torch.stack([v, v]), 4), Philox(KEY)).chains.v
        assert torch.equal(replicas[0], NATIVE.run(energy, moves, Walk(v, 4), Philox(KEY)).chains.v)
        assert not torch.equal(replicas[0], replicas[1])
        if precision == "highest":
            agree(
                NATIVE.run(energy, moves, Walk(torch.stack([v, v]), 4), Philox(KEY)),
                step_by_step(energy, GibbsLangevin(0.05), Walk(torch.stack([v, v]), 4), Philox(KEY)),
            )


@pytest.mark.whole
@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_walks_too():
    """Though OpenMP's threads stay behind."""
    script = """
import os, torch, grbm
torch.set_num_threads(2)
draw = lambda: grbm.sample(grbm.GRBM(3, 4), grbm.Gibbs(), n_chains=300).v
here = draw()
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(draw(), here) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@needs_compiler
def test_extreme_logits():
    model = random_model(1, 4, 0, dtype=torch.float32)
    with torch.no_grad():
        model.W.zero_()
        model.b.copy_(torch.tensor([-1e30, -60.0, 60.0, 1e30]))
    moves = Moves(torch.zeros(1, 1), torch.ones(1, 1))
    chains: Chains = NATIVE.run(model.freeze(), moves, Walk(torch.zeros(1000, 1), 5), Philox(KEY)).chains
    assert chains.h.unique(dim=0).tolist() == [[0, 0, 1, 1]]
    assert chains.h_prob.isfinite().all()


@needs_compiler
def test_elementary_functions_are_as_good_as_float32():
    """The sigmoid over its whole range, and by it the exponential, to 4 units in the last place."""
    logits = torch.linspace(-80, 80, 4001)
    model = random_model(1, len(logits), 0, dtype=torch.float32)
    with torch.no_grad():
        model.W.zero_()
        model.b.copy_(logits)
    moves = Moves(torch.zeros(1, 1), torch.ones(1, 1))
    chains: Chains = NATIVE.run(model.freeze(), moves, Walk(torch.zeros(1, 1), 1), Philox(KEY)).chains
    exactly = logits.double().sigmoid()
    assert float((chains.h_prob[0].double() / exactly - 1).abs().max()) < 4 * 2.0**-23


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"PATH": "/nowhere", "CC": ""}, ["no C compiler found"]),
        ({"CC": "false"}, ["could not be compiled"]),
        ({"GRBM_CACHE_DIR": "/proc/nowhere"}, ["/proc/nowhere"]),
        ({"GRBM_ENGINE": "pytorch"}, []),
    ],
    ids=["none", "broken", "read-only", "off"],
)
def test_without_a_compiler_pytorch_serves_and_says_so(changes, told, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GRBM_ENGINE", "auto")
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    assert compiled.library.__wrapped__() is None
    assert len(caplog.records) == len(told)
    for record, words in zip(caplog.records, told, strict=True):
        assert words in record.getMessage()
        assert "chains run in plain PyTorch" in record.getMessage()


@pytest.mark.parametrize(("engine", "named"), [("numpy", "'numpy'"), ("native", "GRBM_ENGINE=native")])
def test_an_engine_that_cannot_be_had_is_refused(engine, named, monkeypatch, tmp_path):
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("GRBM_ENGINE", engine)
    with pytest.raises(UserError, match=named):
        compiled.library.__wrapped__()


@pytest.mark.whole
def test_a_process_without_a_compiler_draws_what_pytorch_draws(tmp_path):
    script = (
        "import grbm\nm = grbm.GRBM(3, 4)\nfor s in 1, 2: print(grbm.sample(m, grbm.Gibbs(), n_chains=2, seed=s).h)"
    )
    outputs = {}
    for name, changes in (
        ("none", {"PATH": "/nowhere", "CC": ""}),
        ("broken", {"CC": "false"}),
        ("read-only", {"GRBM_CACHE_DIR": "/proc/nowhere"}),
        ("off", {"GRBM_ENGINE": "pytorch"}),
        ("wrong", {"GRBM_ENGINE": "numpy"}),
        ("forced", {"GRBM_ENGINE": "native", "CC": "false"}),
    ):
        env = os.environ | {"GRBM_CACHE_DIR": str(tmp_path / name)} | changes
        outputs[name] = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    for name in ("none", "broken", "read-only"):
        assert outputs[name].returncode == 0, outputs[name].stderr
        assert outputs[name].stderr.count("chains run in plain PyTorch") == 1
        assert outputs[name].stdout == outputs["off"].stdout
    assert outputs["off"].stderr == ""
    assert "GRBM_ENGINE must be native, pytorch or auto, not 'numpy'" in outputs["wrong"].stderr
    assert "GRBM_ENGINE=native, but native.c could not be compiled" in outputs["forced"].stderr


@needs_compiler
def test_what_does_not_fit_is_refused_before_any_memory_is_read():
    energy = random_model(6, 5, 0, dtype=torch.float32).freeze()
    for v in (torch.zeros(4, 3), torch.zeros(4, 12)):
        with pytest.raises(ValueError, match=r"v of the chains must have shape \(4, 6\)"):
            run_chains(energy, Gibbs(), v, 2, Philox(KEY))
    for n_replicas in (4, 6):
        with pytest.raises(ValueError, match=rf"shrink .*\(1, {n_replicas}, 1, 6\)"):
            run_chains(energy, ParallelTempering(n_replicas=n_replicas), torch.zeros(3, 8, 6), 2, Philox(KEY))
    moves = Gibbs().moves(energy, 2)
    with pytest.raises(ValueError, match=r"shrink .*\(1, 4, 6\)"):
        NATIVE.run(energy, moves._replace(shrink=torch.zeros(1, 4, 6)), Walk(torch.zeros(4, 6), 2), Philox(KEY))
    chains = run_chains(energy, Gibbs(), torch.zeros(4, 6), 1, Philox(KEY)).chains
    with pytest.raises(ValueError, match="h of the chains must have shape"):
        NATIVE.run(energy, moves, Walk(torch.zeros(4, 6), 2, given=chains._replace(h=chains.h[:3])), Philox(KEY))


@needs_compiler
def test_numbers_do_not_depend_on_the_default_dtype():
    energy, v = random_model(6, 5, 0, dtype=torch.float32).freeze(), torch.zeros(4, 6)
    samplers = [GibbsLangevin(0.1, adjust_from=0), ParallelTempering(n_replicas=3)]
    before = [run_chains(energy, sampler, v, 3, Philox(KEY), burn_in=0) for sampler in samplers]
    torch.set_default_dtype(torch.float64)
    try:
        after = [run_chains(energy, sampler, v, 3, Philox(KEY), burn_in=0) for sampler in samplers]
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a.chains.v, b.chains.v)
        assert torch.equal(a.sums.sums.vh, b.sums.sums.vh)


@needs_compiler
def test_tables_that_another_thread_made_first_are_kept(monkeypatch):
    """C may have their addresses already."""
    energy, lay, first = random_model(6, 5, 0, dtype=torch.float32).freeze(), native_packing.lay, []

    def overtaken(tables):
        monkeypatch.setattr(native_packing, "lay", lay)
        first.append(native_packing.constants(energy, 1, False))
        return lay(tables)

    monkeypatch.setattr(native_packing, "lay", overtaken)
    assert native_packing.constants(energy, 1, False) == first[0]


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads the library anew, as another process would, from a cache of its own."""
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "FLAGS", ["-O0", *compiled.FLAGS[1:]])  # a third of the seconds
    monkeypatch.setenv("GRBM_ENGINE", "native")
    return compiled.library.__wrapped__


@pytest.fixture(scope="module")
def compiled_quickly(tmp_path_factory):
    """A folder with the library, compiled once for all tests of damage."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRBM_CACHE_DIR", str(folder))
        patch.setattr(compiled, "FLAGS", ["-O0", *compiled.FLAGS[1:]])
        compiled._compiled()
    return folder / "native"


@pytest.fixture
def made(load, compiled_quickly, tmp_path):
    """The library in that cache."""
    shutil.copytree(compiled_quickly, tmp_path / "cache" / "native")
    (tmp_path / "cache" / "native").chmod(0o700)
    return compiled._compiled()


@needs_compiler
def test_structs_are_those_of_the_source(load, monkeypatch):
    """With every field where C has it; a struct of another size is seen before it is handed over."""
    fields = ["n_chains", "n_hidden", "key", "first_chain", "draw", "beta", "J", "alone", "h", "swept", "room"]
    assert [name for name, _ in structs.Sweep._fields_] == fields
    assert structs.Ladder.gaps.offset == ctypes.sizeof(structs.Walk)
    assert structs.Noise.out.offset == 4 * 8 + 2 * 4
    assert {"Walk", "Phases", "Follower"} < structs.handed().keys()
    with pytest.raises(AttributeError, match="Queue"):
        structs.Queue  # noqa: B018
    other = structs.handed() | {"Sweep": structs.Walk}
    monkeypatch.setattr(compiled, "handed", lambda: other)
    with pytest.raises(UserError, match="it is not what was compiled"):
        load()


@needs_compiler
def test_compiled_once(load, tmp_path, monkeypatch):
    """And a cache that is full needs no compiler any more."""
    assert load() is not None
    (made,) = (tmp_path / "cache" / "native").iterdir()
    assert re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]{32}\.so", made.name)
    stamp = made.stat().st_mtime_ns
    monkeypatch.setenv("PATH", "/nowhere")
    assert load() is not None
    assert [path.stat().st_mtime_ns for path in (tmp_path / "cache" / "native").iterdir()] == [stamp]


@needs_compiler
@pytest.mark.whole
@pytest.mark.parametrize("damage", ["cut", "zeros", "other code"])
def test_a_damaged_library_is_made_again(made, load, tmp_path, damage):
    load()
    whole = made.read_bytes()
    made.unlink()  # it is mapped by this process
    if damage == "cut":
        made.write_bytes(whole[: len(whole) // 2])
    elif damage == "zeros":
        made.write_bytes(whole[:4096] + bytes(8192) + whole[12288:])
    else:
        source = tmp_path / "other.c"
        source.write_text("int nothing(void) { return 1; }\n")
        compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")))
        subprocess.run([*compiler.split(), "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    assert load() is not None
    (again,) = (tmp_path / "cache" / "native").iterdir()
    assert len(again.read_bytes()) == len(whole)


@needs_compiler
def test_a_library_that_others_could_have_put_there_is_not_loaded(made, load, monkeypatch, caplog):
    """It runs with the user's rights. The notice says what is wrong; chains run in PyTorch."""
    load()
    for path, mode, back in ((made.parent, 0o777, 0o700), (made, 0o666, 0o644)):
        path.chmod(mode)
        with pytest.raises(UserError, match=re.escape(str(path))):
            load()
        path.chmod(back)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(made).st_uid + 1)
    monkeypatch.setenv("GRBM_ENGINE", "auto")
    assert load() is None
    assert "belongs to" in caplog.text
    assert "plain PyTorch" in caplog.text


@pytest.mark.whole
@needs_compiler
def test_an_empty_cache_variable_and_what_a_kill_left(load, tmp_path, monkeypatch):
    """Empty is as if it were not set: nothing is written to where one happens to be."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("GRBM_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "grbm" / "native"
    for name, age in ((".making-old", 2 * 24 * 3600), (".making-new", 0)):
        (folder / name).mkdir(parents=True)
        folder.chmod(0o700)
        os.utime(folder / name, (time.time() - age,) * 2)
    assert load() is not None
    assert list(here.iterdir()) == []
    assert sorted(path.name for path in folder.iterdir())[0] == ".making-new"
    assert len(list(folder.iterdir())) == 2


@pytest.mark.whole
@needs_compiler
def test_a_run_that_goes_on_with_other_code_says_so(tmp_path):
    settings = ["--train.n-updates", "4", "--model.n-hidden", "8", "--no-figures", "--log.no-tensorboard"]
    command = [sys.executable, "-m", "grbm"]
    folder = tmp_path / "run"
    subprocess.run([*command, "train", "digits", *settings, "--out", str(folder), "--device", "cpu"], check=True)
    for engine, said in (("native", False), ("pytorch", True)):
        (folder / "status.json").unlink()
        env = os.environ | {"GRBM_ENGINE": engine}
        resume = [*command, "resume", str(folder), "--no-figures"]
        done = subprocess.run(resume, env=env, capture_output=True, text=True, check=True)
        assert ("go on in pytorch code" in done.stderr) == said


@needs_compiler
@pytest.mark.parametrize(("n_chains", "N", "M"), [(1, 1, 1), (100, 4, 209), (443, 30, 106), (64, 130, 300)])
def test_free_energies_are_those_of_the_definition(n_chains, N, M):
    energy = random_model(N, M, 0, dtype=torch.float32).freeze()
    v = 3 * torch.randn(n_chains, N, generator=generator(0, "v"))
    exactly = energy.to(torch.float64).free_energy(v.double())
    torch.testing.assert_close(Native().free_energy(energy, v).double(), exactly, rtol=1e-6, atol=1e-3)
    assert torch.equal(Native().free_energy(energy, v[:0]), energy.free_energy(v[:0]))
    one_by_one = torch.stack([Native().free_energy(energy, row) for row in v])
    scales = torch.tensor([0.5, 2.0])[:, None, None]
    each = torch.stack([Native().free_energy(energy, v / s) for s in scales[:, 0, 0]])
    assert torch.equal(Native().free_energy(energy, v), one_by_one)
    assert torch.equal(Native().free_energy(energy, v / scales), each)
