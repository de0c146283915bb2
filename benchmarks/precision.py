"""Does half precision change what is learned? Errors of logits and probabilities, and learning curves.

    uv run python -m benchmarks.precision --data-dir DIR --out docs/figures/precision.png

Trains `digits` (three seeds) and `mnist-small` (where MNIST is in DIR) with --precision highest and fast, draws their
curves into one figure, and compares operands of products on trained models against float64; among them one whose
smallest variances were driven below 1e-4.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from grbm import runs
from grbm.runs.config import RunConfig
from grbm.runs.presets import PRESETS
from grbm.runs.training import train as train_run
from grbm.samplers import Gibbs, sample
from grbm.samplers.engines import compiled

CURVES = {"energy_distance": "energy distance of chains to data", "reconstruction": "reconstruction error"}


def trained(folder: Path, config: RunConfig) -> runs.Run:
    quiet = replace(config.log, tensorboard=False, points=100)
    train_run(replace(config, log=quiet), folder)
    return runs.read(folder)


def compare(run: runs.Run) -> None:
    """Against float64: operands v and W/σ² in float32, and (v − μ)/σ and W/σ in half precision."""
    energy = run.model.double().freeze()
    data = run.transform(run.load_data().train[:2000]).double()
    chains = sample(run.model.float(), Gibbs(), n_chains=1000, n_steps=100).v.double()
    sigma, c = energy.var.sqrt(), energy.hidden_logits(energy.mu)
    print(f"variances {float(energy.var.min()):.1e} to {float(energy.var.max()):.1e}")
    for name, v in (("data", data), ("chains", chains)):
        exact = energy.hidden_logits(v)
        operands = {"float32": (v.float(), (energy.W / energy.var[:, None]).float(), energy.b)}
        for kind in (torch.float16, torch.bfloat16):
            half = ((v - energy.mu) / sigma).to(kind).float(), (energy.W / sigma[:, None]).to(kind).float()
            operands[str(kind).removeprefix("torch.")] = (*half, c)
        for kind, (left, right, constant) in operands.items():
            logits = (left @ right).double() + constant
            errors = (logits - exact).abs(), (logits.sigmoid() - exact.sigmoid()).abs()
            parts = [f"mean {float(x.mean()):.1e}, max {float(x.max()):.1e}" for x in errors]
            spread = f"logits (deviation {float(exact.std()):.0f})"
            print(f"  {name:<7}{kind:<9} {spread}: {parts[0]}; probabilities: {parts[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("precision.png"))
    options = parser.parse_args()
    half = compiled.half() > 0
    print("fast is " + ("bfloat16 here" if half else "float32 on this processor, and nothing is compared"))
    tasks = [("digits", seed, PRESETS["digits"].config) for seed in range(3)]
    if (options.data_dir / "mnist").exists() or any(options.data_dir.rglob("train-images-idx3-ubyte*")):
        tasks.append(("mnist-small", 0, PRESETS["mnist-small"].config))
    figure = Figure(figsize=(9, 6), layout="constrained")
    panels = dict(zip(("digits", "mnist-small"), figure.subplots(2, 2), strict=True))
    with tempfile.TemporaryDirectory() as scratch:
        for name, seed, config in tasks:
            for precision, style in (("highest", "-"), ("fast", "--")):
                chosen = replace(config, seed=seed, precision=precision, data_dir=options.data_dir, device="cpu")
                run = trained(Path(scratch) / f"{name}-{seed}-{precision}", chosen)
                late = run.metrics[-20:]
                for axes, (key, title) in zip(panels[name], CURVES.items(), strict=True):
                    axes.semilogy(
                        [m["update"] for m in run.metrics],
                        [max(m[key], 1e-3) for m in run.metrics],
                        style,
                        label=f"{precision} {seed}",
                    )
                    axes.set_title(f"{name}: {title}", fontsize=9)
                means = {key: sum(m[key] for m in late) / len(late) for key in CURVES}
                print(
                    f"{name}, seed {seed}, {precision:<8} " + ", ".join(f"{k} {x:.4f}" for k, x in means.items()),
                    flush=True,
                )
            if seed == 0:
                compare(run)
        narrow = PRESETS["digits"].config
        plain = replace(narrow.train, learning_rate=0.05, spectral_norm=None)  # at which none falls apart before
        narrow = replace(narrow, train=replace(plain, n_updates=24_000, min_var=1e-8, variance_rate=150.0))
        print("digits with variances let go")
        compare(trained(Path(scratch) / "narrow", replace(narrow, device="cpu")))
    panels["digits"][0].legend(fontsize=7)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
