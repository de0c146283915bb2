"""The named runs of `grbm train PRESET`: small recommended ones, and the paper's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from grbm.data.config import PLANE, DatasetConfig
from grbm.fitting.recipe import Facts, ModelConfig, ObjectiveConfig, SamplerConfig, TrainConfig, changed, resolve
from grbm.runs.config import RunConfig, SamplingConfig
from grbm.runs.paper import EXPERIMENTS, configure


class Preset(NamedTuple):
    """A named run, and what it is in a line."""

    summary: str
    config: RunConfig


def _mixture(name: str, anchor_var: float) -> RunConfig:
    """Persistent chains of wide exact moves from anchored hidden units; annealed, resampled chains to draw from noise.

    The start decides which optimum is reached, proposals some eight deviations wide, tested at temperature 1, give each
    mode its mass, the centred gradient keeps those masses from swinging, and the weights of annealed chains carry them
    over to samples from noise (docs/lab/measurements.md).
    """
    return RunConfig(
        dataset=DatasetConfig(name, standardise="none", n_points=10_000),  # type: ignore[arg-type]
        model=ModelConfig(128, start="anchored", anchor_var=anchor_var),
        sampler=SamplerConfig(
            "gibbs-langevin", step_size=10.0, temperature=100.0, accept_temperature=1.0, adjust_from=0
        ),
        objective=ObjectiveConfig("pcd", n_steps=30, n_chains=100, probabilities=True),
        train=TrainConfig(8000, 1000, learning_rate=0.005, variance_rate=0.1, centred=True, average_decay=0.999),
        sampling=SamplingConfig(SamplerConfig("annealed", power=1.5), n_steps=300),
    )


def _images(
    name: str, n_hidden: int, *, n_steps: int = 10, is_censored: bool = False, n_drawn: int = 100, **settings: Any
) -> RunConfig:
    """Persistent chains, a tenth of them restarted from noise at each update, with the centred gradient.

    On digits this beats modified CD in samples and in likelihood, and unlike it does not fall apart when trained longer
    (docs/lab/measurements.md). ``min_var`` keeps the variances of pixels that are always black from falling for ever,
    and of censored ones that of the few strokes that hidden units come to follow alone, in long runs. Those begin with
    a variance of 0.15: from 1 it hardly falls, since latent values of black pixels spread far below black. Images are
    drawn by ``n_drawn`` steps from noise.
    """
    start_var, own = (0.15, {"latent_rounds": 2, "latent_depth": 1.5}) if is_censored else (1.0, {})
    sampler = SamplerConfig("gibbs")
    return RunConfig(
        dataset=DatasetConfig(name, standardise="scalar", censor="auto" if is_censored else "none"),  # type: ignore[arg-type]
        model=ModelConfig(n_hidden, start_var=start_var),
        sampler=sampler,
        objective=ObjectiveConfig("pcd", n_steps=n_steps, n_chains=256, probabilities=True, restart=0.1),
        train=TrainConfig(batch_size=256, centred=True, average_decay=0.99, min_var=0.02, **own | settings),
        sampling=SamplingConfig(sampler, n_steps=n_drawn, mean=True),
    )


def _faces(n_hidden: int, *, size: int = 32, **settings: Any) -> RunConfig:
    """CelebA by `_images`; larger pictures are 2,000 random ones, as in the paper, none held out."""
    config = _images("celeba", n_hidden, **settings)
    dataset = replace(config.dataset, standardise="channel", size=size, held_out=0.1)
    if size > 32:
        dataset = replace(dataset, subset=2000, held_out=0.0)
    return replace(config, dataset=dataset)


LEARNED = ("model", "sampler", "objective", "train")  # parts of a configuration that a recipe has
USUAL = Facts(n_rows=1000, n_units=10, suits_whitening=True)  # of the table whose settings `PRESETS` shows


def for_table(config: RunConfig, facts: Facts, asked: Mapping[str, Any]) -> RunConfig:
    """The preset array as it suits a table of these ``facts``; what is ``asked`` for, by name, stands.

    Where nothing else is asked for, a run of whitened rows samples as it trains, and others by annealed chains.
    """
    learned = {name: x for name, x in asked.items() if name.partition(".")[0] in LEARNED}
    others = {name: x for name, x in asked.items() if name not in learned}
    of_data = {name: asked.get(f"dataset.{name}") for name in ("standardise", "censor")}
    recipe = resolve(learned | of_data, facts)
    parts = {part: getattr(recipe, part) for part in LEARNED}
    sampling = SamplingConfig(recipe.sampler, n_steps=100)
    if recipe.sampler.name == "parallel-tempering":
        sampling = SamplingConfig(SamplerConfig("annealed"), n_steps=500)
    if (name := asked.get("sampling.sampler.name", sampling.sampler.name)) != sampling.sampler.name:
        sampling = replace(sampling, sampler=SamplerConfig(name))
    dataset = replace(config.dataset, standardise=recipe.standardise)
    return changed(replace(config, dataset=dataset, **parts, sampling=sampling), others)


def paper(dataset: str, sampler: SamplerConfig, *, n_hidden: int, batch_size: int, n_updates: int) -> RunConfig:
    """The paper's recipe at temperature 1: modified CD, 100 steps, SGD 0.01 with cosine, clipping at 10."""
    return RunConfig(
        dataset=DatasetConfig(dataset, standardise="none" if dataset in PLANE else "pixel"),  # type: ignore[arg-type]
        model=ModelConfig(n_hidden),
        sampler=sampler,
        objective=ObjectiveConfig(n_steps=100),
        train=TrainConfig(n_updates, batch_size),
        sampling=SamplingConfig(sampler, n_steps=100, mean=dataset not in PLANE),
    )


PAPER_SAMPLERS = {
    "gibbs": SamplerConfig("gibbs"),
    "langevin": SamplerConfig("langevin", step_size=0.04),
    "langevin-adjusted": SamplerConfig("langevin", step_size=0.04, adjust_from=0),
    "gibbs-langevin": SamplerConfig("gibbs-langevin", step_size=0.04, n_inner=10),
    "gibbs-langevin-adjusted": SamplerConfig("gibbs-langevin", step_size=0.04, n_inner=10, adjust_from=0),
}

_SPECTRAL: dict[str, Any] = {"n_updates": 1200, "learning_rate": 0.5, "n_steps": 5, "spectral_norm": 0.5}
_CENSORED = _SPECTRAL | {"learning_rate": 0.8, "is_censored": True}

PRESETS: dict[str, Preset] = {
    "digits": Preset(
        "scikit-learn's 8 x 8 digits", _images("digits", 256, n_updates=2000, learning_rate=0.3, spectral_norm=0.3)
    ),
    "mnist-small": Preset("MNIST on two CPU cores, a minute or two", _images("mnist", 512, n_drawn=80, **_CENSORED)),
    "mnist-medium": Preset(
        "MNIST on two CPU cores, some twenty minutes",
        _images("mnist", 2048, n_drawn=50, **_CENSORED | {"n_updates": 4000, "latent_depth": 2.0}),
    ),
    "mnist-large": Preset(
        "MNIST by 4,096 hidden units, on a GPU",
        replace(_images("mnist", 4096, n_drawn=50, **_CENSORED | {"n_updates": 8000}), precision="fast"),
    ),
    "fashion-small": Preset("Fashion-MNIST on two CPU cores", _images("fashion-mnist", 512, **_CENSORED)),
    "fashion-medium": Preset(
        "Fashion-MNIST on two CPU cores, some twenty minutes",
        _images("fashion-mnist", 2048, n_drawn=50, **_CENSORED | {"n_updates": 4000}),
    ),
    "isotropic": Preset("the paper's 2-D mixture of round modes", _mixture("isotropic", 0.5)),
    "anisotropic": Preset("the paper's 2-D mixture of elongated modes", _mixture("anisotropic", 0.2)),
    "array": Preset(
        "your own table, --data FILE (CSV, Parquet, NPY ..., or a Hugging Face data set)",
        for_table(RunConfig(DatasetConfig("array")), USUAL, {}),
    ),
    "images": Preset("your own pictures, --data FOLDER --dataset.size 32", _images("images", 512, **_SPECTRAL)),
    "celeba-small": Preset("CelebA faces, 32 x 32, on two CPU cores", _faces(1000, is_censored=True, **_SPECTRAL)),
    "celeba-medium": Preset(
        "CelebA faces, 32 x 32, by 4,000 hidden units; an hour on two CPU cores with matrix units and --precision fast",
        _faces(4000, **_SPECTRAL | {"n_updates": 2000}),
    ),
    "celeba-64": Preset(
        "2,000 of CelebA's faces, 64 x 64, on two CPU cores", _faces(1000, size=64, **_SPECTRAL | {"n_updates": 600})
    ),
}
PRESETS |= {
    f"paper-{name}": Preset(
        f"Fig. 1, rows {rows}, with Gibbs (--sampler.name for the others)",
        paper(name, PAPER_SAMPLERS["gibbs"], n_hidden=256, batch_size=100, n_updates=500_000),
    )
    for name, rows in (("isotropic", "1-2"), ("anisotropic", "3-4"))
}
PRESETS |= {
    name: Preset(f"{e.title}; --scale {f'{e.cpu_scale:f}'.rstrip('0')} for a CPU", configure(name))
    for name, e in EXPERIMENTS.items()
}
PRESETS = {name: Preset(p.summary, replace(p.config, preset=name)) for name, p in PRESETS.items()}
