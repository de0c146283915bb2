"""What processes say to each other per update against what they compute: arithmetic, not a measurement.

    uv run python -m benchmarks.communication

One update sends the N x M difference of moments in float64 once around (ring all-reduce: 2 (P − 1)/P of it through each
GPU), and computes three products of B x N x M per step of the chains. The ratio of the two times is

    [16 (P − 1)/P / bandwidth] / [6 B K / (P rate)]

so the size of the model cancels: what counts is how many chain steps, B K / P, a GPU does between two exchanges. The
rates are assumptions to be replaced by measured ones: --rate (useful TFLOP/s of a GPU in these products), --inside and
--between (GB/s that a GPU gets in an all-reduce inside a machine of 8, and between machines).
"""

import argparse

SETTINGS = {
    "MNIST (N 784, M 4,096)": (784, 4096),
    "CelebA 32 x 32 (N 3,072, M 10,000)": (3072, 10_000),
}
BATCH, STEPS, SIZES = 512, 100, (1, 2, 4, 8, 16, 32, 64)


def times(N: int, M: int, batch: int, processes: int, options: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds of computing and of communicating per update, on each of ``processes`` GPUs."""
    compute = 6 * (batch / processes) * N * M * STEPS / (options.rate * 1e12)
    bandwidth = (options.inside if processes <= 8 else options.between) * 1e9
    exchange = 2 * (processes - 1) / processes * 8 * N * M / bandwidth
    return 1e3 * compute, 1e3 * exchange


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=40, help="TFLOP/s")
    parser.add_argument("--inside", type=float, default=300, help="GB/s inside a machine")
    parser.add_argument("--between", type=float, default=40, help="GB/s between machines")
    options = parser.parse_args()
    print(
        f"assumed: {options.rate:g} TFLOP/s, {options.inside:g} GB/s inside a machine of 8 GPUs, {options.between:g} "
        f"GB/s between machines; {STEPS} steps of the chains per update"
    )
    for name, (N, M) in SETTINGS.items():
        print(f"\n{name}: {8e-6 * N * M:.0f} MB an update")
        print(f"{'GPUs':>5}  {'one batch of 512 shared':^34}  {'512 rows and chains per GPU':^34}")
        print(f"{'':>5}  " + "  ".join([f"{'compute':>9} {'exchange':>10} {'efficiency':>13}"] * 2))
        for processes in SIZES:
            cells = []
            for batch in (BATCH, BATCH * processes):
                compute, exchange = times(N, M, batch, processes, options)
                cells.append(f"{compute:6.2f} ms {exchange:7.2f} ms {compute / (compute + exchange):13.0%}")
            print(f"{processes:>5}  " + "  ".join(cells))


if __name__ == "__main__":
    main()
