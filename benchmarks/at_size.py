"""The rows of the paper's Table 1 in their own size on a GPU, each for so many seconds, and our recipe beside them.

    uv run python -m benchmarks.at_size --out DIR --data-dir DATA --seconds 100     # train and draw, on a GPU
    uv run python -m benchmarks.at_size --out DIR --data-dir DATA --score           # anywhere, as the next two
    uv run python -m benchmarks.at_size --out DIR --data-dir DATA --score --fid-weights FILE
    uv run python -m benchmarks.at_size --out DIR --data-dir DATA --figure FILE

A row has 4,096 hidden units, 100 CD steps from noise and batches of 512, as in the paper, and as many updates as fit
into the seconds at the rate of its first ones, over which the learning rate falls; ours is the preset mnist-large.
Images are drawn from noise by as many steps as in training, or as the preset says; states v and conditional means μ +
W h are of the same chains. What is in DIR is not made again.
"""

import argparse
import copy
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from grbm import TrainState, fit, sample
from grbm.core.distributed import ALONE
from grbm.core.files import read_tensors, write_tensors, write_text
from grbm.data.images import load_idx, tile
from grbm.data.tables import spread
from grbm.evaluate.features import classifier, inception_768
from grbm.evaluate.frechet import FeatureStatistics, frechet_estimate, neighbours
from grbm.runs.config import RunConfig
from grbm.runs.paper import EXPERIMENTS, configure
from grbm.runs.preparing import Prepared, open_data, prepare
from grbm.runs.presets import PRESETS

ROWS = [name for name in EXPERIMENTS if name.startswith("table1")]
OURS = "mnist-large"
N_IMAGES = 2000
Scores = dict[str, dict[str, dict[str, float]]]  # by row, then by "means" or "states"
RADIUS = 4.0  # of the balls that cover samples, pixels in [0, 1]


def config_of(name: str, n_hidden: int | None) -> RunConfig:
    """A row of the paper as the program of its time ran it, or a preset of ours."""
    config = configure(name, "paper-time-program", 1.0) if name in EXPERIMENTS else PRESETS[name].config
    return replace(config, model=replace(config.model, n_hidden=n_hidden or config.model.n_hidden), precision="fast")


def begin(config: RunConfig, data_dir: Path, device: str) -> Prepared:
    """Data, machine and objective."""
    opened = open_data(replace(config, data_dir=data_dir), ALONE)
    return prepare(opened, Path("nowhere"), ALONE, device, resume=False)


def rate_of(run: Prepared, n: int = 75) -> float:
    """Seconds of an update, on a copy, after the first ones."""
    model = copy.deepcopy(run.state.model)
    state = TrainState(model, run.config.train.build(model))
    options = replace(run.config.train, n_updates=10**6)
    updates = fit(state, run.data, run.objective, options, precision=run.config.precision)
    for _ in itertools.islice(updates, 30):
        pass
    wait()
    began = time.perf_counter()
    for _ in itertools.islice(updates, n):
        pass
    wait()
    return (time.perf_counter() - began) / n


def wait() -> None:
    """Until a GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def train(run: Prepared, seconds: float | None, n_updates: int | None) -> dict[str, float]:
    """Train for so many ``seconds``, or ``n_updates``, or as the configuration says; what it took."""
    each = rate_of(run)
    asked = n_updates or (run.config.train.n_updates if seconds is None else max(1, int(seconds / each)))
    options = replace(run.config.train, n_updates=asked)
    began = time.perf_counter()
    for _ in fit(run.state, run.data, run.objective, options, precision=run.config.precision):
        pass
    wait()
    took = time.perf_counter() - began
    epochs = options.n_updates * options.batch_size / len(run.data)
    return {"updates": options.n_updates, "seconds": took, "epochs": epochs, "ms an update": 1e3 * each}


def make(
    name: str,
    out: Path,
    data_dir: Path,
    device: str,
    *,
    seconds: float,
    n_updates: int | None = None,
    n_hidden: int | None = None,
) -> dict[str, float]:
    """Train a row and draw from it, if that is not in ``out``; a preset of ours trains as long as it says."""
    target = out / f"{name}.json"
    if not target.exists():
        run = begin(config_of(name, n_hidden), data_dir, device)
        took = train(run, seconds if name in EXPERIMENTS else None, n_updates)
        learned = run.state.average or run.state.model
        write_tensors(out / f"{name}.samples.safetensors", draw(run, N_IMAGES))
        write_tensors(out / f"{name}.model.safetensors", dict(learned.state_dict()))
        write_text(target, json.dumps(took) + "\n")
    found: dict[str, float] = json.loads(target.read_text())
    return found


def draw(run: Prepared, n_images: int) -> dict[str, Tensor]:
    """Images from noise (n, 784), uint8: states v and conditional means of the same chains."""
    how, model = run.config.sampling, run.state.average or run.state.model
    sampler = how.sampler.build(run.frame)
    chains = sample(model, sampler, n_chains=n_images, n_steps=how.n_steps, seed=1, precision="fast")
    means = model.censoring.recorded(model.visible_mean(chains.h))
    images = {"states": chains.v, "means": means.detach()}
    return {
        kind: (255 * run.frame.transform.inverse(x.cpu()).clamp(0, 1)).round().to(torch.uint8)
        for kind, x in images.items()
    }


def balls(images: Tensor, radius: float = RADIUS) -> int:
    """Balls about images (n, N) in [0, 1] that cover them all, taken in their order: a count of variety."""
    free, n = torch.ones(len(images), dtype=torch.bool), 0
    for k in range(len(images)):
        if free[k]:
            free &= torch.cdist(images[k : k + 1], images)[0] > radius
            n += 1
    return n


def score(out: Path, data_dir: Path, weights: Path | None, names: list[str], device: str) -> Iterator[Scores]:
    """FID-768 of what was drawn, where there are ``weights``; else the classifier's scores and balls."""
    known, unseen = (load_idx("mnist", data_dir, train=part) for part in (True, False))
    judge = inception_768(weights, device) if weights else classifier("mnist", known, unseen, (28, 28))
    real, test = (x[spread(len(x), N_IMAGES)].float().view(-1, 1, 28, 28) for x in (known[0], unseen[0]))
    at_data = judge.extract(real)
    statistics = FeatureStatistics.of(at_data)
    if weights is None:
        yield {"test images": {"images": {"balls": balls(test.flatten(1))}}}
    for name in names:
        drawn = read_tensors(out / f"{name}.samples.safetensors")
        found: dict[str, dict[str, float]] = {}
        for kind in ("means", "states"):
            images = (drawn[kind].float() / 255).view(-1, 1, 28, 28)
            own = judge.extract(images)
            estimate = frechet_estimate(statistics, own)
            found[kind] = {judge.label: round(estimate.mean, 4), "±": round(estimate.error, 4)}
            if judge.neighbours:
                near = neighbours(at_data, own)
                found[kind] |= {"precision": near.precision, "recall": near.recall, "balls": balls(images.flatten(1))}
        yield {name: found}


def picture(out: Path, names: list[str], path: Path) -> None:
    """Conditional means of each row, as a sheet of a figure."""
    from grbm.report import plots, sheets

    shown = []
    for name in names:
        images = read_tensors(out / f"{name}.samples.safetensors")["means"][:60].float() / 255
        took = json.loads((out / f"{name}.json").read_text())
        title = EXPERIMENTS[name].title if name in EXPERIMENTS else f"our recipe, {name}"
        shown.append((tile(images, (1, 28, 28), 10), f"{title}, {took['seconds']:.0f} s"))
    plots.save(sheets.gallery(shown, 11.5, 2.9 * -(-len(shown) // 3), rows=-(-len(shown) // 3)), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=100.0, help="of training, of each row of the paper")
    parser.add_argument("--only", nargs="+", default=[OURS, *ROWS])
    parser.add_argument("--n-hidden", type=int, help="in place of each row's own")
    parser.add_argument("--updates", type=int, help="in place of --seconds, and of those of our recipe")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--fid-weights", type=Path, help="score by FID-768")
    parser.add_argument("--figure", type=Path, help="draw the conditional means of all rows")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.score:
        for found in score(options.out, options.data_dir, options.fid_weights, options.only, options.device):
            print(json.dumps(found, ensure_ascii=False), flush=True)
    elif options.figure:
        picture(options.out, options.only, options.figure)
    else:
        how = {"seconds": options.seconds, "n_updates": options.updates, "n_hidden": options.n_hidden}
        for name in options.only:
            print(name, json.dumps(make(name, options.out, options.data_dir, options.device, **how)), flush=True)


if __name__ == "__main__":
    main()
