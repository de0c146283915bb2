"""The doctor on whole runs: it calls four kinds of failure wrong, and three healthy runs not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from grbm import runs
from grbm.data.config import DatasetConfig
from grbm.fitting.recipe import ModelConfig, ObjectiveConfig, SamplerConfig, TrainConfig
from grbm.report.doctor import diagnose
from grbm.runs.config import RunConfig, SamplingConfig
from grbm.runs.presets import PRESETS
from grbm.runs.training import train

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("few_looks")]
SEEDS = [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 10))]


def clusters(n: int, seed: int, masses: tuple[float, ...] = (0.4, 0.35, 0.25)) -> np.ndarray:
    """Three separate clusters in 3-D, in units of their own."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0, 0, 0], [30, 0, 0.1], [0, 400, 0.2]])
    return centres[rng.choice(3, n, p=masses)] + rng.normal(size=(n, 3)) * [3, 30, 0.02]


def ring(n: int, seed: int) -> np.ndarray:
    """Eight round clusters on a circle, which a full-covariance Gaussian and those settings tell nothing of."""
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * rng.integers(0, 8, n) / 8
    return 5 * np.c_[np.cos(angle), np.sin(angle)] + 0.3 * rng.normal(size=(n, 2))


def wrong(folder: Path, x: np.ndarray, config: RunConfig, seed: int, judged: np.ndarray | None = None) -> list[str]:
    """What the doctor calls wrong of a run trained on x, beside ``judged``, or x itself."""
    np.save(folder / "x.npy", x)
    train(replace(config, data=folder / "x.npy", seed=seed), folder / "run", warn=lambda text: None)
    if judged is not None:
        np.save(folder / "x.npy", judged)
    run = runs.read(folder / "run")
    rows = run.config.load_data()  # the run itself would refuse those to judge by, which are not its own
    return [f"{about}: {text}" for level, about, text in diagnose(run, rows, seed=1) if level == "wrong"]


def quick(n_updates: int = 550) -> RunConfig:
    preset = PRESETS["array"].config
    train = replace(preset.train, n_updates=n_updates, rounds=10)
    return replace(preset, train=train, log=replace(preset.log, tensorboard=False))


def old(learning_rate: float = 0.05) -> RunConfig:
    """The settings that 0.1 had for arrays, which are those of images."""
    return RunConfig(
        dataset=DatasetConfig("array", standardise="pixel"),
        model=ModelConfig(128),
        sampler=SamplerConfig("gibbs"),
        objective=ObjectiveConfig("pcd", n_steps=10, n_chains=256, probabilities=True, restart=0.1),
        train=TrainConfig(1000, 256, learning_rate=learning_rate, centred=True, min_var=0.02, average_decay=0.99),
        sampling=SamplingConfig(SamplerConfig("gibbs"), n_steps=100),
        preset="array",
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_model_no_better_than_one_gaussian_is_wrong(seed, tmp_path):
    found = wrong(tmp_path, ring(2000, seed), old(), seed)
    assert any(text.startswith("likelihood") and "--dataset.standardise whiten" in text for text in found), found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hundred_times_the_learning_rate_is_wrong(seed, tmp_path):
    """With the preset of now the cosine heals it, and the doctor rightly finds nothing."""
    found = wrong(tmp_path, clusters(2000, seed), old(5.0), seed)
    assert any("learning rate" in text or "--lr" in text or "--train.learning-rate" in text for text in found), found


@pytest.mark.parametrize("seed", SEEDS)
def test_modes_with_the_wrong_mass_are_wrong(seed, tmp_path):
    found = wrong(tmp_path, clusters(2000, seed, (0.7, 0.15, 0.15)), quick(), seed, clusters(2000, seed))
    assert any(text.startswith("samples") for text in found), found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_hidden_unit_is_wrong(seed, tmp_path):
    config = replace(quick(), model=replace(quick().model, n_hidden=1))
    found = wrong(tmp_path, clusters(2000, seed), config, seed)
    assert any("--model.n-hidden" in text for text in found), found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "kind",
    ["clusters", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("full-covariance Gaussian", "skewed"))],
)
def test_healthy_runs_are_not_called_wrong(kind, seed, tmp_path):
    rng = np.random.default_rng(seed)
    tables = {
        "clusters": clusters(2000, seed),
        "full-covariance Gaussian": rng.normal(size=(1000, 4)) @ rng.normal(size=(4, 4)),
        "skewed": rng.gamma(3.0, size=(2000, 3)) @ rng.normal(size=(3, 3)),
    }
    assert wrong(tmp_path, tables[kind], quick(), seed) == []
