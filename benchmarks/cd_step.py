"""The cost of a CD step with Gibbs-Langevin: the published algorithm, every implementation here, and the limits.

    uv run python -m benchmarks.cd_step              # four sizes and the paper's CelebA, on whatever device is there
    uv run python -m benchmarks.cd_step --growth     # growth with N, M, batch, CD steps and K
    uv run python -m benchmarks.cd_step --profile    # where the native implementation's time goes, on one thread
    uv run python -m benchmarks.cd_step --update     # a whole update beside its walk, and the memory that it moves

All interleaved in one run; medians over rounds of the negative phase (start, walk, statistics) per CD step.
"""

import argparse
import contextlib
import ctypes
import statistics
import subprocess
import tempfile
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import published
from grbm import GRBM, FitOptions, GibbsLangevin, ModifiedCD, TrainState, fit
from grbm.core.options import Precision
from grbm.core.randomness import Blocks
from grbm.model import Energy
from grbm.samplers import Walk, run_chains
from grbm.samplers.engines import compiled
from grbm.samplers.engines.native import Native
from grbm.samplers.sampling import step_by_step

STEP_SIZE, BLOCKS = 0.04, 4


class Size(NamedTuple):
    N: int
    M: int
    C: int
    steps: int = 10  # of the walk that is timed
    K: int = 10


SIZES = [
    Size(2, 256, 100, 100),
    Size(64, 256, 100, 100),
    Size(784, 512, 256, 20),
    Size(784, 4096, 512, 10),
    Size(3072, 10_000, 512, 4),
]


def prepared(size: Size, device: torch.device) -> tuple[GRBM, Energy, torch.Tensor]:
    model = GRBM(size.N, size.M, device=device)
    v = torch.randn(size.C, size.N, generator=torch.Generator().manual_seed(0)).to(device)
    return model, model.freeze(), v


def contenders(size: Size, device: torch.device) -> dict[str, Callable[[], object]]:
    """By name, each a walk of ``size.steps`` steps with its statistics, or a part of it."""
    model, energy, v = prepared(size, device)
    halves = v.half(), energy.W.half(), torch.ones(size.C, size.M, device=device).half()
    N, M, C, T, K = size
    sampler = GibbsLangevin(STEP_SIZE, n_inner=K)
    adjusted = GibbsLangevin(STEP_SIZE, n_inner=K, adjust_from=0)
    h, sums = torch.randint(2, (C, M), device=device).float(), torch.zeros(N, M, device=device)
    logits, drive = torch.empty(C, M, device=device), torch.empty(C, N, device=device)

    def products() -> None:
        for _ in range(T):
            torch.mm(v, energy.W, out=logits)
            torch.mm(h, energy.W.T, out=drive)
            sums.addmm_(v.T, h)

    def draws() -> None:
        for _ in range(T):
            torch.rand(C, M, device=device)
            torch.randn(C, N, device=device)

    def half_products() -> None:
        for _ in range(T):
            torch.mm(halves[0], halves[1])
            torch.mm(halves[2], halves[1].T)
            torch.mm(halves[0].T, halves[2])

    def walk(
        how: Callable[..., object], sampler: GibbsLangevin, precision: Precision = "highest"
    ) -> Callable[[], object]:
        return _walk(how, model.freeze(precision), v, size, sampler)

    found: dict[str, Callable[[], object]] = {
        "published": lambda: published.negative_phase(energy, v, T, K, STEP_SIZE),
        "pytorch": walk(_plain, sampler),
        "pytorch, adjusted": walk(_plain, adjusted),
    }
    if device.type == "cuda":
        found |= {f"fused, {p}": walk(run_chains, sampler, p) for p in ("highest", "high", "fast")}
        found["half products alone"] = half_products
    elif compiled.library() is not None:
        found |= {"native": walk(run_chains, sampler), "native, adjusted": walk(run_chains, adjusted)}
        if compiled.half():
            found["native, fast"] = walk(run_chains, sampler, "fast")
    found["whole update"] = endless_updates(model, v, size, sampler, "highest")
    return found | {"three products alone": products, "draws alone": draws}


def measure(calls: dict[str, Callable[[], object]], steps: int, rounds: int) -> dict[str, float]:
    """Milliseconds per CD step, interleaved, medians; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for k in range(rounds + 1):
        for name, call in calls.items():
            _wait()
            began = time.perf_counter()
            call()
            _wait()
            if k:
                times[name].append(1e3 * (time.perf_counter() - began) / steps)
    return {name: statistics.median(x) for name, x in times.items()}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table(rounds: int, device: torch.device, sizes: list[Size]) -> None:
    for size in sizes:
        times = measure(contenders(size, device), size.steps, rounds if size.N < 3000 else 1)
        print(f"\nN = {size.N}, M = {size.M}, batch {size.C}, {size.steps} steps, K = {size.K}")
        for name, milliseconds in times.items():
            print(f"  {name:<22}{milliseconds:10.4f} ms  x {times['published'] / milliseconds:6.2f}")


def outside_bytes(size: Size, blocks: int) -> int:
    """Bytes of numbers as many as W that an update must read and write outside of its walk, in float32.

    The copy that chains move under, W packed twice, the sums at the data written and, beside those under the chains and
    W, read for the gradient, which is written; the step reads it and W, and writes both.
    """
    frozen, packed, at_data, gradient, step = 2, 2 + 2, blocks, 2 * blocks + 1 + 1, 4
    return 4 * size.N * size.M * (frozen + packed + at_data + gradient + step)


def updates(rounds: int) -> None:
    """A whole update of few steps beside its walk alone, in turn, and what lies between them."""
    n = 1 << 27
    source, target = torch.rand(n), torch.empty(n)
    copied = measure({"copy": lambda: target.copy_(source)}, 1, rounds)["copy"]
    bandwidth = 2 * 4 * n / copied * 1e3
    print(f"a copy in memory moves {bandwidth / 1e9:.1f} GB/s")
    for size in SIZES[1:]:
        few = size._replace(steps=min(size.steps, 10))
        model, energy, v = prepared(few, torch.device("cpu"))
        sampler = GibbsLangevin(STEP_SIZE, n_inner=few.K)
        kinds: tuple[Precision, ...] = ("highest", "fast")
        for precision in kinds:
            calls = {
                "update": endless_updates(model, v, few, sampler, precision),
                "walk": _walk(run_chains, energy.at(precision), v, few, sampler),
            }
            times = measure(calls, 1, rounds if size.N < 3000 else 3)
            between = times["update"] - times["walk"]
            share = outside_bytes(few, BLOCKS) / (between * 1e-3) / bandwidth
            print(
                f"N = {few.N}, M = {few.M}, batch {few.C}, {few.steps} steps, {precision}: "
                f"update {times['update']:.2f} ms, walk {times['walk']:.2f} ms, "
                f"ratio {times['update'] / times['walk']:.3f}; between them {between:.2f} ms "
                f"for {outside_bytes(few, BLOCKS) / 1e6:.1f} MB ({share:.0%} of the bandwidth)"
            )


def endless_updates(
    model: GRBM, v: torch.Tensor, size: Size, sampler: GibbsLangevin, precision: Precision
) -> Callable[[], object]:
    """The next of endless updates, of ``size.steps`` steps."""
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=1e-6))
    options = FitOptions(n_updates=10**9, batch_size=size.C, blocks=BLOCKS)
    made = fit(state, v, ModifiedCD(sampler, size.steps), options, precision=precision)
    return lambda: next(made)


def _walk(
    how: Callable[..., object], energy: Energy, v: torch.Tensor, size: Size, sampler: GibbsLangevin
) -> Callable[[], object]:
    """A walk from v with its statistics."""
    return lambda: how(energy, sampler, v, size.steps, Blocks(1, BLOCKS, device=v.device), burn_in=0)


def _plain(
    energy: Energy, sampler: GibbsLangevin, v: torch.Tensor, n_steps: int, rng: Blocks, *, burn_in: int
) -> object:
    """`run_chains` in PyTorch."""
    return step_by_step(energy, sampler, Walk(v, n_steps, burn_in), rng)


def growth(rounds: int, device: torch.device) -> None:
    """One of N, M, batch, CD steps and K at a time, from a middle size; milliseconds per CD step."""
    middle = Size(256, 256, 128, 20)
    for name, values in (
        ("N", (64, 256, 1024)),
        ("M", (64, 256, 1024)),
        ("C", (32, 128, 512)),
        ("steps", (1, 10, 100)),
        ("K", (1, 10, 40)),
    ):
        print(f"\nby {'batch' if name == 'C' else name}, else {middle}")
        for value in values:
            size = middle._replace(**{name: value})
            calls = contenders(size, device)
            wanted = {k: calls[k] for k in ("published", "pytorch", "native") if k in calls}
            times = measure(wanted, size.steps, rounds)
            print(f"  {value:>6}" + "".join(f"   {k} {t:9.4f} ms" for k, t in times.items()))


def profile(sizes: list[Size]) -> None:
    """`native.c` compiled with its clocks, on one thread."""
    names = (
        "mean of v given h (product)",
        "move of v (normal draws)",
        "h given v: product",
        "h given v: draws",
        "sums",
    )
    with tempfile.TemporaryDirectory() as folder, one_thread():
        path = Path(folder) / "profiled.so"
        subprocess.run(["cc", *compiled.FLAGS, "-DPROFILE", "-o", str(path), *map(str, compiled.SOURCES)], check=True)
        clocked = ctypes.CDLL(str(path))
        seconds = (ctypes.c_double * len(names)).in_dll(clocked, "grbm_seconds")
        for size in sizes[:4]:
            _, energy, v = prepared(size, torch.device("cpu"))
            moves = GibbsLangevin(STEP_SIZE).moves(energy, size.steps)
            walk = Walk(v, size.steps, burn_in=0)
            Native().run(energy, moves, walk, Blocks(1, BLOCKS))  # packs W
            seconds[:] = [0.0] * len(names)
            began = time.perf_counter()
            with unittest.mock.patch.object(compiled, "library", return_value=clocked):
                Native().run(energy, moves, walk, Blocks(1, BLOCKS))
            took = time.perf_counter() - began
            seconds[3] -= seconds[2]  # its clock runs around the product's
            print(f"\nN = {size.N}, M = {size.M}, batch {size.C}: {1e3 * took / size.steps:.4f} ms a step")
            for name, part in zip((*names, "around the walk"), (*seconds, took - sum(seconds)), strict=True):
                print(f"  {name:<30}{part / took:6.1%}")


@contextlib.contextmanager
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="only so many, from the smallest")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{where}, PyTorch {torch.__version__}; per CD step, medians of {options.rounds} rounds")
    if options.growth:
        growth(options.rounds, device)
    elif options.profile:
        profile(SIZES)
    elif options.update:
        updates(options.rounds)
    else:
        table(options.rounds, device, SIZES[: options.sizes])


if __name__ == "__main__":
    main()
