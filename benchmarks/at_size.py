"""The rows of the paper's Table 1 in their own size on a GPU, each for so many seconds, and our recipe beside them.

    uv run python -m benchmarks.at_size --out DIR --data-dir DATA --seconds 100        # train and draw, on a GPU
    uv run python -m benchmarks.at_size --out DIR --data-dir DATA --score --fid-weights FILE    # anywhere

A row has 4,096 hidden units, 100 CD steps from noise and batches of 512, as in the paper, and as many updates as fit
into the seconds at the rate of its first ones, over which the learning rate falls. Images are drawn from noise by as
many steps; states v and conditional means μ + W h are of the same chains. What is in DIR is not made again.
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
from grbm.data.images import load_idx
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
RADIUS = 4.0  # of the balls that cover samples, pixels in [0, 1]


def config_of(name: str, n_hidden: int, changes: dict[str, float]) -> RunConfig:
    """A row of the paper as the program of its time ran it, or our recipe with as many hidden units."""
    if name in EXPERIMENTS:
        config = configure(name, "paper-time-program", 1.0)
        return replace(config, model=replace(config.model, n_hidden=n_hidden), precision="fast")
    config = PRESETS["mnist-medium"].config
    objective, train = config.objective, config.train
    for key, value in changes.items():
        if hasattr(objective, key):
            objective = replace(objective, **{key: type(getattr(objective, key))(value)})
        else:
            train = replace(train, **{key: type(getattr(train, key))(value)})
    model = replace(config.model, n_hidden=n_hidden)
    return replace(config, model=model, objective=objective, train=train, precision="fast")


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


def train(name: str, run: Prepared, seconds: float, n_updates: int | None) -> dict[str, float]:
    """Train for so many ``seconds``, or ``n_updates``; what it took."""
    each = rate_of(run)
    options = replace(run.config.train, n_updates=n_updates or max(1, int(seconds / each)))
    began = time.perf_counter()
    for _ in fit(run.state, run.data, run.objective, options, precision=run.config.precision):
        pass
    wait()
    took = time.perf_counter() - began
    epochs = options.n_updates * options.batch_size / len(run.data)
    return {"updates": options.n_updates, "seconds": took, "epochs": epochs, "ms an update": 1e3 * each}


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


def score(out: Path, data_dir: Path, weights: Path | None, names: list[str], device: str) -> Iterator[str]:
    """FID-768 of what was drawn, where there are ``weights``; else the classifier's scores and balls."""
    known, unseen = (load_idx("mnist", data_dir, train=part) for part in (True, False))
    judge = inception_768(weights, device) if weights else classifier("mnist", known, unseen, (28, 28))
    real, test = (x[spread(len(x), N_IMAGES)].float().view(-1, 1, 28, 28) for x in (known[0], unseen[0]))
    at_data = judge.extract(real)
    statistics = FeatureStatistics.of(at_data)
    if weights is None:
        yield json.dumps({"test images": {"balls": balls(test.flatten(1))}})
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
        yield json.dumps({name: found}, ensure_ascii=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=100.0, help="of training, of each row")
    parser.add_argument("--only", nargs="+", default=[*ROWS, OURS])
    parser.add_argument("--n-hidden", type=int, default=4096)
    parser.add_argument("--updates", type=int, help="in place of --seconds")
    parser.add_argument("--set", nargs="*", default=[], help="settings of our recipe, such as n_steps=20")
    parser.add_argument("--suffix", default="", help="of the files of our recipe")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--fid-weights", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.score:
        for line in score(options.out, options.data_dir, options.fid_weights, options.only, options.device):
            print(line, flush=True)
        return
    changes = {name: float(value) for name, value in (pair.split("=") for pair in options.set)}
    for row in options.only:
        name = row + (options.suffix if row == OURS else "")
        if (options.out / f"{name}.json").exists():
            continue
        run = begin(config_of(row, options.n_hidden, changes), options.data_dir, options.device)
        took = train(name, run, options.seconds, options.updates)
        write_tensors(options.out / f"{name}.samples.safetensors", draw(run, N_IMAGES))
        learned = run.state.average or run.state.model
        write_tensors(options.out / f"{name}.model.safetensors", dict(learned.state_dict()))
        write_text(options.out / f"{name}.json", json.dumps(took) + "\n")
        print(name, json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
