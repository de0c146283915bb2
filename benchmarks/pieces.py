"""Pieces of training, each against its definition: spectral steps by products of the shorter side, and annealing.

    uv run python -m benchmarks.pieces

The three iterations of a spectral step in float32, as they are and with X taken along; 256 annealed chains in one
native call, and by native sweeps one after another. One thread; in turns, medians of milliseconds.
"""

import statistics
import time
from collections.abc import Callable

import torch

from grbm import GRBM
from grbm.core.devices import threads
from grbm.core.randomness import Blocks, generator
from grbm.learning.spectral import orthogonalised
from grbm.samplers.collapsed import RESAMPLED, TEMPERATURES, Boltzmann, annealed
from grbm.samplers.engines.native import Native

STEPS = (192, 512), (784, 512), (784, 2048), (784, 4096), (3072, 1000)
UNITS = (6, 73), (4, 128), (30, 106)
TURNS = 15


def in_turns(*ways: Callable[[], object]) -> list[float]:
    """Median milliseconds of each way."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(TURNS):
        for way, its in zip(ways, times, strict=True):
            began = time.perf_counter()
            way()
            its.append(1e3 * (time.perf_counter() - began))
    return [statistics.median(its) for its in times]


def main() -> None:
    with threads(1):
        for shape in STEPS:
            x = torch.randn(shape, generator=generator(0))
            found = in_turns(lambda x=x: orthogonalised(x), lambda x=x: orthogonalised(x, dtype=x.dtype))
            print(f"spectral step {shape}: {found[0]:.2f}, {found[1]:.2f} with X taken along", flush=True)
        for N, M in UNITS:
            marginal = Boltzmann.of(GRBM(N, M, seed=1).freeze())
            h = torch.rand(256, M, generator=generator(0)).round()
            betas = torch.linspace(0, 1, TEMPERATURES + 1, dtype=torch.float64).square()

            def native(marginal=marginal, h=h, betas=betas) -> object:
                return Native().anneal(*marginal, h, betas, RESAMPLED, Blocks(0, 1))

            def by_sweep(marginal=marginal, h=h, betas=betas) -> object:
                return annealed(marginal, h.clone(), betas, Blocks(0, 1))

            found = in_turns(native, by_sweep)
            print(f"annealing {M} units: {found[0]:.2f}, {found[1]:.2f} sweep by sweep", flush=True)


if __name__ == "__main__":
    main()
