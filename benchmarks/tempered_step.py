"""A tempered update whose walk is one call of native code, against one whose steps are taken one by one.

    uv run python -m benchmarks.tempered_step

Step by step means native moves, and swaps in PyTorch. Whole updates of persistent contrastive
divergence with 8 replicas, in the settings of the preset isotropic and of the estimator at 64 columns without
whitening. All threads; interleaved, medians.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.interleaved import update_times
from grbm import GRBM, PCD, Base, FitOptions, ParallelTempering, TrainState, fit
from grbm.learning.state import StepMetrics

SETTINGS = {"isotropic": (2, 128, 10, 100, 1000), "estimator, 64 columns": (64, 256, 5, 64, 256)}
ROUNDS, UPDATES = 11, 20


@dataclass(frozen=True)
class StepByStep(ParallelTempering):
    """The definition."""

    def at_once(self, *walk: Any) -> None:
        return None


def training(
    kind: type[ParallelTempering], N: int, M: int, steps: int, chains: int, batch: int
) -> Iterator[StepMetrics]:
    rows = torch.randn(4000, N, generator=torch.Generator().manual_seed(0))
    model = GRBM(N, M)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
    objective = PCD(kind(Base.fit(rows), 8), steps, n_chains=chains, probabilities=True)
    return fit(state, rows, objective, FitOptions(n_updates=1_000_000, batch_size=batch, centred=True))


def main() -> None:
    for name, sizes in SETTINGS.items():
        runs = {kind: training(kind, *sizes) for kind in (StepByStep, ParallelTempering)}
        one_by_one, whole = update_times(runs, UPDATES, ROUNDS).values()
        ratio = statistics.median(a / b for a, b in zip(one_by_one, whole, strict=True))
        print(
            f"{name:<22} {1e3 * statistics.median(one_by_one):7.2f} ms an update step by step, "
            f"{1e3 * statistics.median(whole):6.2f} ms in one call: {ratio:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
