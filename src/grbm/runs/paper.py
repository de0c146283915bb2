"""The paper's image experiments as configurations: every row of Tables 1 to 3, Fashion-MNIST and CelebA.

Each comes in three dynamics. ``paper`` is the equations as printed, at temperature 1. The others are what the authors'
program computes: it divides the energy by the batch size B but not the noise, so v moves at that temperature, in an
incomplete last batch at its own; it standardises by one mean and deviation; Langevin's chains count by p(h | v), the
data by draws; and it shows conditional means after one step less, of batches of 100. Its versions differ in the test of
adjusted Gibbs-Langevin: ``paper-time-program`` at temperature 1, ``last-public-program`` by exp(−E/B), h included.
Langevin is tested at B in both. The step sizes in the tables are the program's own; divided by the batch size they are
those of the printed equations.
"""

from dataclasses import replace
from typing import NamedTuple

from grbm.core.errors import UserError
from grbm.data.config import DatasetConfig
from grbm.fitting.recipe import ModelConfig, ObjectiveConfig, SamplerConfig, TrainConfig
from grbm.runs.config import About, Dynamics, RunConfig, SamplingConfig


class Experiment(NamedTuple):
    """A row of the paper: where it stands, what was run, and the FID printed there."""

    place: str  # in the paper
    title: str
    fid: float | None = None
    sampler: str = "gibbs-langevin"
    n_hidden: int = 4096
    n_steps: int = 100  # CD steps
    n_inner: int = 10  # K
    step_size: float = 20.0  # α₀ as printed
    adjust_from: int | None = None  # η
    anneal: bool = False  # α₀ falls to 0 over training
    dataset: str = "mnist"
    n_rows: int = 60_000
    batch_size: int = 512
    epochs: int = 3000
    cpu_scale: float = 1e-4  # minutes of one core


GL, GLA = "Gibbs-Langevin without adjustment", "Gibbs-Langevin with adjustment"
EXPERIMENTS = {
    "table1-gibbs": Experiment("Table 1", "Gibbs", 47.53, "gibbs"),
    "table1-langevin": Experiment("Table 1", "Langevin without adjustment", 43.80, "langevin"),
    "table1-langevin-adjusted": Experiment("Table 1", "Langevin with adjustment", 41.24, "langevin", adjust_from=0),
    "table1-gibbs-langevin": Experiment("Table 1", GL, 17.49),
    "table1-gibbs-langevin-adjusted": Experiment("Table 1", GLA, 19.27, adjust_from=50, anneal=True),
    "table2-2048": Experiment("Table 2", f"{GL}, 50 CD steps, 2048 hidden units", 32.33, n_steps=50, n_hidden=2048),
    "table2-4096": Experiment("Table 2", f"{GL}, 50 CD steps, 4096 hidden units", 21.02, n_steps=50),
    "table2-8192": Experiment("Table 2", f"{GL}, 50 CD steps, 8192 hidden units", 22.05, n_steps=50, n_hidden=8192),
    "table3-inner1": Experiment("Table 3", f"{GL}, K = 1", 35.08, n_inner=1),
    "table3-inner5": Experiment("Table 3", f"{GL}, K = 5", 19.00, n_inner=5),
    "table3-step10": Experiment("Table 3", f"{GL}, first step size 10", 21.05, step_size=10.0),
    "table3-step5": Experiment("Table 3", f"{GL}, first step size 5", 25.67, step_size=5.0),
    "table3-adjust0": Experiment("Table 3", f"{GLA} from step 0", 21.31, adjust_from=0),
    "table3-adjust25": Experiment("Table 3", f"{GLA} from step 25", 21.25, adjust_from=25),
    "table3-adjust50": Experiment("Table 3", f"{GLA} from step 50", 20.64, adjust_from=50),
    "paper-mnist": Experiment("Table 1", GL, 17.49),
    "paper-fashion-mnist": Experiment(
        "Fig. 4a", "Fashion-MNIST", n_hidden=10_000, dataset="fashion-mnist", cpu_scale=5e-5
    ),
    "paper-celeba-32": Experiment(
        "Fig. 4b", "CelebA, 32 x 32", n_hidden=10_000, dataset="celeba", n_rows=162_770, cpu_scale=5e-6
    ),
    "paper-celeba-2k-64": Experiment(
        "Fig. 4c",
        "2,000 pictures of CelebA, 64 x 64",
        n_hidden=10_000,
        dataset="celeba",
        n_rows=2000,
        batch_size=100,
        epochs=4000,
    ),
}


SHOWN_TOGETHER = 100  # samples that the authors' program draws at a time, and so the temperature at which it does
DYNAMICS: dict[Dynamics, str] = {
    "paper": "the equations as printed",
    "paper-time-program": "dynamics of the published program when the paper was written",
    "last-public-program": "dynamics of the published program's last version",
}


def programmed(sampler: SamplerConfig, dynamics: Dynamics, *, step_size: float, batch_size: int) -> SamplerConfig:
    """A sampler of the Langevin family as a version of the authors' program runs it, Gibbs as it is."""
    if sampler.name == "gibbs":
        return sampler
    made = replace(sampler, step_size=step_size, temperature=float(batch_size))
    if sampler.adjust_from is None or sampler.name == "langevin":
        return made
    return replace(made, accept_temperature=1.0) if dynamics == "paper-time-program" else replace(made, joint=True)


def configure(name: str, dynamics: Dynamics = "paper", scale: float = 1.0) -> RunConfig:
    """The configuration of an experiment.

    ``scale`` is the share of the full run's arithmetic, so that a CPU can run a part: updates fall by its power 5/8,
    hidden units by 1/4 and CD steps by 1/8, since chains that are too short teach nothing. ``config.about`` says so,
    and is shown with every output.

    Raises UserError for a scale outside (0, 1].
    """
    if not 0 < scale <= 1:
        raise UserError(f"--scale must be above 0 and at most 1, got {scale}.")
    e = EXPERIMENTS[name]
    published = dynamics != "paper"
    full = e.epochs * -(-e.n_rows // e.batch_size) if published else e.epochs * (e.n_rows // e.batch_size)
    n_hidden, n_steps, n_updates = (
        max(least, round(scale**power * n))
        for least, n, power in ((8, e.n_hidden, 1 / 4), (2, e.n_steps, 1 / 8), (10, full, 5 / 8))
    )
    sampler = SamplerConfig(e.sampler)  # type: ignore[arg-type]
    if e.sampler != "gibbs":
        sampler = replace(
            sampler,
            step_size=e.step_size / e.batch_size,
            adjust_from=e.adjust_from and round(n_steps * e.adjust_from / e.n_steps),
            n_inner=e.n_inner if e.sampler == "gibbs-langevin" else None,
        )
    if published:
        sampler = programmed(sampler, dynamics, step_size=e.step_size, batch_size=e.batch_size)
    shown = sampler if sampler.temperature is None else replace(sampler, temperature=float(SHOWN_TOGETHER))
    marginal = published and e.sampler == "langevin"
    dataset = DatasetConfig(e.dataset, standardise="scalar" if published else "pixel")  # type: ignore[arg-type]
    if e.dataset == "celeba":
        size, subset = (64, 2000) if e.n_rows == 2000 else (32, None)
        dataset = replace(dataset, standardise="channel", size=size, subset=subset, held_out=0.0)
    return RunConfig(
        dataset=dataset,
        model=ModelConfig(n_hidden),
        sampler=sampler,
        objective=ObjectiveConfig(n_steps=n_steps, probabilities=marginal, data_draws=marginal),
        train=TrainConfig(n_updates, e.batch_size, anneal_step_size=e.anneal, keep_last=published),
        sampling=SamplingConfig(shown, n_steps=n_steps - published, mean=published),
        about=About(dynamics, scale),
        preset=name,
    )


def changed_by_hand(preset: RunConfig, config: RunConfig) -> RunConfig:
    """``config`` with what was changed of an experiment's preset in its ``about``: it is the paper's row no more."""
    before, now = preset.identity(), config.identity()
    changed = tuple(f"{name} = {now[name]}" for name in now if now[name] != before.get(name) and name != "seed")
    return replace(config, about=replace(preset.about or About(), changed=changed))


def with_rows(config: RunConfig, n_rows: int) -> RunConfig:
    """``config`` with the number of its training rows in its ``about``, where the paper had others."""
    e = EXPERIMENTS.get(config.preset)
    if e is None or n_rows == e.n_rows or config.about is None:
        return config
    return replace(config, about=replace(config.about, n_rows=n_rows))


def describe(config: RunConfig, *, title: bool = True) -> str:
    """Describe an experiment's run, and its departures from the paper; empty for other runs."""
    about, e = config.about, EXPERIMENTS.get(config.preset)
    if about is None or e is None:
        return ""
    parts = [f"{e.place}: {e.title}"] if title else []
    parts += [DYNAMICS[about.dynamics]]
    if about.scale < 1:
        full = configure(config.preset, about.dynamics)
        row = configure(config.preset, about.dynamics, about.scale)
        parts += [
            f"at scale {about.scale:g}: {row.model.n_hidden:,} of {full.model.n_hidden:,} hidden units, "
            f"{row.objective.n_steps} of {full.objective.n_steps} CD steps, "
            f"{row.train.n_updates:,} of {full.train.n_updates:,} updates"
        ]
    parts += [f"changed: {', '.join(about.changed)}"] if about.changed else []
    if about.n_rows is not None:
        parts += [f"{about.n_rows:,} training images, {e.n_rows:,} in the paper"]
    return "; ".join(parts)
