"""Updates whose walk is one call of native code, against those whose steps are taken one by one: swaps and jumps.

    uv run python -m benchmarks.tempered_step

Step by step means native moves, and swaps or jumps in PyTorch. Whole updates of persistent contrastive divergence: with
8 replicas in the settings of the preset isotropic and of the estimator at 64 columns without whitening, and with jumps
to a mixture of 13 Gaussians in those of small tables. All threads; interleaved, medians.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.interleaved import update_times
from grbm import GRBM, PCD, Base, FitOptions, GlobalMoves, ParallelTempering, Reference, Sampler, TrainState, fit
from grbm.learning.state import StepMetrics

SETTINGS = {
    "isotropic": (2, 128, 10, 100, 1000),
    "estimator, 64 columns": (64, 256, 5, 64, 256),
    "jumps, 6 columns": (6, 73, 1, 256, 294),
    "jumps, 30 columns": (30, 106, 1, 256, 426),
}
ROUNDS, UPDATES, COMPONENTS = 11, 20, 13


@dataclass(frozen=True)
class TemperedByStep(ParallelTempering):
    """The definition."""

    def at_once(self, *walk: Any) -> None:
        return None


@dataclass(frozen=True)
class JumpsByStep(GlobalMoves):
    """The definition."""

    def at_once(self, *walk: Any) -> None:
        return None


def sampler(rows: torch.Tensor, *, jumps: bool, at_once: bool) -> Sampler:
    if not jumps:
        return (ParallelTempering if at_once else TemperedByStep)(Base.fit(rows), 8)
    means, N = rows[:COMPONENTS], rows.shape[1]
    q = Reference(torch.full((COMPONENTS,), 1 / COMPONENTS), means, torch.eye(N).repeat(COMPONENTS, 1, 1).tril())
    q.factors[:, 1:, 0] = 0.1  # a full covariance
    return (GlobalMoves if at_once else JumpsByStep)(q)


def training(N: int, M: int, steps: int, chains: int, batch: int, **how: bool) -> Iterator[StepMetrics]:
    rows = torch.randn(4000, N, generator=torch.Generator().manual_seed(0))
    model = GRBM(N, M)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
    objective = PCD(sampler(rows, **how), steps, n_chains=chains, probabilities=True)
    return fit(state, rows, objective, FitOptions(n_updates=1_000_000, batch_size=batch, centred=True))


def main() -> None:
    for name, sizes in SETTINGS.items():
        runs = {at_once: training(*sizes, jumps="jumps" in name, at_once=at_once) for at_once in (False, True)}
        one_by_one, whole = update_times(runs, UPDATES, ROUNDS).values()
        ratio = statistics.median(a / b for a, b in zip(one_by_one, whole, strict=True))
        print(
            f"{name:<22} {1e3 * statistics.median(one_by_one):7.2f} ms an update step by step, "
            f"{1e3 * statistics.median(whole):6.2f} ms in one call: {ratio:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
