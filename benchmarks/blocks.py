"""What blocks of chains cost one process: the time of an update by number of blocks, against one block.

    uv run python -m benchmarks.blocks

All threads; settings of the presets mnist-small and digits and of the 2-D mixtures' size; interleaved, medians.
"""

import statistics
from collections.abc import Iterator

import torch

from benchmarks.interleaved import update_times
from grbm import GRBM, PCD, FitOptions, Gibbs, TrainState, fit
from grbm.learning.state import StepMetrics

SETTINGS = {"mnist-small": (784, 512, 256, 8), "digits": (64, 256, 256, 40), "plane": (2, 128, 200, 80)}
BLOCKS, ROUNDS = (1, 4, 8), 11


def training(N: int, M: int, batch: int, blocks: int) -> Iterator[StepMetrics]:
    rows = torch.randn(4000, N, generator=torch.Generator().manual_seed(0))
    model = GRBM(N, M)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
    objective = PCD(Gibbs(), 10, n_chains=batch, probabilities=True, restart=0.1)
    return fit(state, rows, objective, FitOptions(n_updates=1_000_000, batch_size=batch, centred=True, blocks=blocks))


def main() -> None:
    for name, (N, M, batch, n) in SETTINGS.items():
        times = update_times({blocks: training(N, M, batch, blocks) for blocks in BLOCKS}, n, ROUNDS)
        ratios = {b: statistics.median(x / one for x, one in zip(times[b], times[1], strict=True)) for b in BLOCKS}
        alone = 1e3 * statistics.median(times[1])
        print(
            f"{name:<12} 1 block {alone:7.2f} ms an update; "
            + "; ".join(f"{b} blocks x {ratios[b]:.2f}" for b in BLOCKS[1:])
        )


if __name__ == "__main__":
    main()
