"""Weak scaling on the setting of `grbm train mnist-small`: as many rows and chains per process, more processes.

    uv run torchrun --standalone --nproc-per-node 2 -m benchmarks.weak_scaling

One thread per process. In turn, several times: the first process alone with 256 rows and chains, then all together with
256 each. The efficiency is the time of an update alone over the time of one together; medians over the rounds. Numbers
are drawn at random in the shape of MNIST, since speed does not depend on them.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import torch

from grbm import GRBM, PCD, FitOptions, Gibbs, TrainState, fit
from grbm.core.distributed import ALONE, ProcessGroup, join, leave
from grbm.learning.state import StepMetrics

N, M, BATCH, BLOCKS = 784, 512, 256, 4


def training(group: ProcessGroup, device: str, n_steps: int) -> Iterator[StepMetrics]:
    rows = torch.randn(20_000, N, generator=torch.Generator().manual_seed(0)).to(device)
    model = GRBM(N, M, device=device)
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=0.01))
    total = BATCH * group.world_size
    objective = PCD(Gibbs(), n_steps, n_chains=total, probabilities=True, restart=0.1)
    options = FitOptions(10**6, total, centred=True, average_decay=0.99, blocks=BLOCKS)
    return fit(state, rows, objective, options, group=group)


def seconds(updates: Iterator[StepMetrics], n: int) -> float:
    began = time.perf_counter()
    for _ in range(n):
        float(next(updates).grad_norm)
    return (time.perf_counter() - began) / n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=8, help="per round")
    parser.add_argument(
        "--steps", type=int, default=10, help="of the chains per update; the preset has 10, the paper 100"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    group, device = join("auto")
    alone, together = training(ALONE, device, options.steps), training(group, device, options.steps)
    times: dict[str, list[float]] = {"alone": [], "together": []}
    for k in range(options.rounds + 1):
        one = seconds(alone, options.updates) if group.is_leader else 0.0
        group.broadcast()  # the others wait
        all_ = seconds(together, options.updates)
        if k > 0:  # the first round warms up
            times["alone"].append(one)
            times["together"].append(all_)
    if group.is_leader:
        one, all_ = (statistics.median(times[name]) for name in ("alone", "together"))
        ratios = sorted(a / b for a, b in zip(times["alone"], times["together"], strict=True))
        print(
            f"{group.world_size} processes, {options.steps} steps an update: alone {1e3 * one:.1f} ms, together "
            f"{1e3 * all_:.1f} ms an update"
        )
        print(
            f"weak-scaling efficiency {statistics.median(ratios):.3f} (rounds from {ratios[0]:.3f} to {ratios[-1]:.3f})"
        )
    leave()


if __name__ == "__main__":
    main()
