"""Training time to a fixed score: MNIST digits drawn from noise by 512 hidden units, on two threads.

    uv run python -m benchmarks.speedrun --data-dir DIR                 # the records, three seeds each
    uv run python -m benchmarks.speedrun --data-dir DIR --only fast

A record has a Fréchet distance of at most 32.7 in the features of the small classifier of `grbm evaluate --fid` (2,000
images drawn from noise against as many of the training images), which `mnist-small` had when this began, as the median
over seeds. The clock runs over updates alone: not while data are read, and not while samples are drawn and judged.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from grbm import fit, sample
from grbm.core.distributed import ALONE
from grbm.data.config import DatasetConfig
from grbm.data.images import load_idx
from grbm.data.tables import spread
from grbm.evaluate.features import Features, classifier
from grbm.evaluate.frechet import FeatureStatistics, frechet_estimate
from grbm.fitting.recipe import ModelConfig, ObjectiveConfig, SamplerConfig, TrainConfig
from grbm.runs.config import RunConfig, SamplingConfig
from grbm.runs.preparing import open_data, prepare
from grbm.samplers.engines import compiled

WANTED, N_IMAGES = 32.7, 2000
SMALL = RunConfig(  # the preset mnist-small as it was when this began
    dataset=DatasetConfig("mnist", standardise="scalar"),
    model=ModelConfig(512),
    sampler=SamplerConfig("gibbs"),
    objective=ObjectiveConfig("pcd", n_steps=10, n_chains=256, probabilities=True, restart=0.1),
    train=TrainConfig(6000, 256, learning_rate=0.1, centred=True, min_var=0.02, average_decay=0.99),
    sampling=SamplingConfig(SamplerConfig("gibbs"), n_steps=100, mean=True),
)
SHORT = replace(
    SMALL,
    objective=replace(SMALL.objective, n_steps=5, n_chains=128),
    train=replace(SMALL.train, n_updates=1800, batch_size=128, learning_rate=0.5),
    precision="fast",
)
SPECTRAL = replace(
    SHORT,
    objective=replace(SHORT.objective, n_chains=192),
    train=replace(SHORT.train, n_updates=400, batch_size=192, spectral_norm=0.8),
)


class Record(NamedTuple):
    """A way to train, and what it changed."""

    since: str
    change: str
    config: RunConfig


RECORDS = {
    "first": Record("2026-11-22", "the preset mnist-small", SMALL),
    "fast": Record("2026-11-23", "products of bfloat16 (--precision fast)", replace(SMALL, precision="fast")),
    "short": Record("2026-11-23", "5 steps, 128 rows and chains, a rate of 0.5, 1,800 updates", SHORT),
    "spectral": Record("2026-11-24", "spectral steps of 0.8, 192 rows and chains, 400 updates", SPECTRAL),
}


class Trained(NamedTuple):
    """What came of a run."""

    seconds: float
    score: float
    error: float


def trained(config: RunConfig, judge: Features, real: FeatureStatistics) -> Trained:
    """Train once, and judge what the average of the parameters draws."""
    with TemporaryDirectory() as folder:
        run = prepare(open_data(config, ALONE), Path(folder), ALONE, "cpu", resume=False)
    compiled.library()  # compiled before the clock runs
    learning, state = fit(run.state, run.data, run.objective, config.train, precision=config.precision), run.state
    began = time.perf_counter()
    for _ in learning:
        pass
    seconds = time.perf_counter() - began
    sampler, how = config.sampling.sampler.build(run.frame), config.sampling
    v = sample(state.average or state.model, sampler, n_chains=N_IMAGES, n_steps=how.n_steps, mean=how.mean, seed=1).v
    images = run.frame.transform.inverse(v).clamp(0, 1).view(-1, 1, 28, 28)
    found = frechet_estimate(real, judge.extract(images))
    return Trained(seconds, found.mean, found.error)


def judge_of(data_dir: Path, dataset: str = "mnist") -> tuple[Features, FeatureStatistics]:
    """The classifier, and its features of the training images."""
    known, unseen = (load_idx(dataset, data_dir, train=part) for part in (True, False))
    judge = classifier(dataset, known, unseen, (28, 28))
    images = known[0][spread(len(known[0]), N_IMAGES)].float().view(-1, 1, 28, 28)
    return judge, FeatureStatistics.of(judge.extract(images))


def lines(data_dir: Path, names: list[str], n_seeds: int) -> Iterator[str]:
    judge, real = judge_of(data_dir)
    for name in names:
        record, found = RECORDS[name], []
        for seed in range(n_seeds):
            found.append(trained(replace(record.config, seed=seed, data_dir=data_dir), judge, real))
            one = found[-1]
            yield f"  {name}, seed {seed}: {one.seconds:.1f} s, Fréchet {one.score:.2f} ± {one.error:.2f}"
        seconds, score = (statistics.median(x) for x in list(zip(*found, strict=True))[:2])
        verdict = "" if score <= WANTED else f", more than {WANTED}: no record"
        yield f"{record.since}  {name:<12} {seconds:7.1f} s  Fréchet {score:5.2f}{verdict}  {record.change}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=RECORDS, default=list(RECORDS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(2)
    for line in lines(options.data_dir, options.only, options.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
