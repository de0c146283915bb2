"""The trainers by name: what each is, and how it learns a task at a rate for a number of updates.

All begin at the task's start but those whose start is their own, and share batch size, chains, clipping, the cosine of
the rate and the average of the parameters, so that what is compared is where the way uphill comes from.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from benchmarks.trainers import rules
from benchmarks.trainers.loops import Steps, follow
from benchmarks.trainers.rules import Chains, Rule
from benchmarks.trainers.tasks import Task
from grbm import (
    CD,
    GRBM,
    PCD,
    FitOptions,
    Gibbs,
    GibbsLangevin,
    Langevin,
    ModifiedCD,
    Objective,
    TrainState,
    TrajectoryTempering,
    fit,
    sparse_,
)
from grbm import ParallelTempering as Tempering
from grbm.errors import DivergenceError
from grbm.samplers import Sampler

CLIP, DECAY = 10.0, 0.999
N_NOISE = 50  # steps from noise of modified CD, half of the paper's
Learn = Callable[[Task, float, int, int], GRBM]  # of a task, a rate, a number of updates, and a seed


class Method(NamedTuple):
    """A trainer, and where it is from."""

    source: str
    learn: Learn
    plane: bool = True  # whether it is for mixtures of the plane too


def fitted(objective: Callable[[Task], Objective], *, start: Callable[[GRBM, Task, int], object] | None = None,
           **options: object) -> Learn:  # fmt: skip
    """By `grbm.fit` with SGD."""

    def learn(task: Task, rate: float, n_updates: int, seed: int) -> GRBM:
        model = task.machine(seed)
        if start is not None:
            start(model, task, seed)
        groups = [
            {"params": [p for name, p in model.named_parameters() if name != "log_var"], "lr": rate},
            {"params": [model.log_var], "lr": rate * task.variance_rate},
        ]
        state = TrainState(model, torch.optim.SGD(groups), seed=seed)
        usual = {"clip_norm": CLIP, "min_var": task.min_var, "average_decay": DECAY}
        how = FitOptions(n_updates, task.batch_size, **(usual | options))  # type: ignore[arg-type]
        try:
            for _ in fit(state, task.rows, objective(task), how):
                pass
        except DivergenceError:
            pass  # the last good parameters are its result
        return state.average or model

    return learn


def ruled(
    rule: Callable[[Task], Rule],
    *,
    adaptive: bool = False,
    start: Callable[[GRBM, Task, int], object] | None = None,
) -> Learn:
    """By a rule of `rules`; ``adaptive`` by the rate of Cho et al., of which the rate given is where it begins."""

    def learn(task: Task, rate: float, n_updates: int, seed: int) -> GRBM:
        way = rule(task)
        steps = Steps(rate, task.batch_size, task.variance_rate, CLIP, task.min_var, DECAY)
        if adaptive:
            chains = way.chains  # type: ignore[attr-defined]
            steps = steps.with_particles(lambda: chains.last)
        model = task.machine(seed)
        if start is not None:
            start(model, task, seed)
        return follow(model, way, task.rows, n_updates, steps, seed)

    return learn


def persistent(sampler: Callable[[Task], Sampler] = lambda task: Gibbs(), **options: float) -> Callable[[Task], PCD]:
    return lambda task: PCD(sampler(task), 5, task.n_chains, probabilities=True, **options)


def from_noise(sampler: Sampler) -> Callable[[Task], ModifiedCD]:
    return lambda task: ModifiedCD(sampler, N_NOISE, n_chains=task.n_chains, probabilities=True)


def tempered(task: Task) -> Tempering:
    return Tempering(task.base, 8)


def wide(task: Task) -> GibbsLangevin:
    """Proposals wider than the model, tested at temperature 1: exact moves from anywhere to anywhere."""
    del task
    return GibbsLangevin(step_size=10.0, temperature=100.0, accept_temperature=1.0, adjust_from=0)


def melchior(model: GRBM, task: Task, seed: int) -> object:
    return sparse_(model, task.rows, seed=seed)


def one_step(task: Task) -> Rule:
    """CD-1 as a rule."""
    del task
    return rules.Frozen(inner=1, n_steps=1)


LOCAL = {"per_unit": True}
METHODS: dict[str, Method] = {
    "modified CD, Gibbs": Method("Liao et al. 2022", fitted(from_noise(Gibbs()))),
    "modified CD, Langevin": Method("the same", fitted(from_noise(Langevin(0.5, **LOCAL)))),
    "modified CD, Langevin adjusted": Method("the same", fitted(from_noise(Langevin(0.5, adjust_from=0, **LOCAL)))),
    "modified CD, Gibbs-Langevin": Method("the same", fitted(from_noise(GibbsLangevin(0.2, **LOCAL)))),
    "modified CD, Gibbs-Langevin adjusted": Method(
        "the same", fitted(from_noise(GibbsLangevin(0.2, adjust_from=0, **LOCAL)))
    ),
    "modified CD, wide moves": Method(
        "their program: proposals of temperature 100, tested at 1", fitted(lambda task: from_noise(wide(task))(task))
    ),
    "CD-1": Method("Hinton 2002", fitted(lambda task: CD(Gibbs(), 1, probabilities=True))),
    "CD-10": Method("the same", fitted(lambda task: CD(Gibbs(), 10, probabilities=True))),
    "PCD": Method("Tieleman 2008", fitted(persistent())),
    "PCD, centred": Method("Montavon & Müller 2012; Melchior et al. 2016", fitted(persistent(), centred=True)),
    "PCD, tempered": Method("Desjardins et al. 2010; Cho et al. 2011", fitted(persistent(tempered))),
    "PCD, enhanced": Method(
        "Cho, Raiko & Ilin 2011", ruled(lambda task: rules.Enhanced(Chains(Gibbs(), 5, task.n_chains)))
    ),
    "PCD, enhanced, tempered, adaptive": Method(
        "Cho, Ilin & Raiko 2011",
        ruled(lambda task: rules.Enhanced(Chains(tempered(task), 5, task.n_chains)), adaptive=True),
    ),
    "CD-1, rare start, one variance": Method(
        "Melchior et al. 2017; Krizhevsky 2009",
        ruled(lambda task: rules.shared_variance(one_step(task)), start=melchior),
        plane=False,
    ),
    "CD-1, sparse": Method("Lee et al. 2008", ruled(lambda task: rules.Sparse(one_step(task)))),
    "S-DCP": Method("Upadhya & Sastry 2021", ruled(lambda task: rules.Frozen(inner=5, n_steps=1))),
    "score matching": Method("Hyvärinen 2005", ruled(lambda task: rules.score_matching)),
    "denoising": Method("Vincent 2011", ruled(lambda task: rules.Denoising(0.3))),
    "mean field": Method("Welling & Hinton 2002", ruled(lambda task: rules.MeanField(1))),
    "TAP": Method("Gabrié et al. 2015; Tramel et al. 2018", ruled(lambda task: rules.MeanField(2))),
    "weighted walkers": Method("Carbone et al. 2023", ruled(lambda task: rules.Weighted(5 * task.n_chains))),
    "PCD, along the trajectory": Method(
        "Béreux et al. 2024", fitted(persistent(lambda task: TrajectoryTempering(base=task.base)))
    ),
    "PCD, spectral": Method("Carlson et al. 2015 (arXiv:1703.09766)", fitted(persistent(), spectral_norm=0.5)),
    "ours, plane": Method(
        "presets isotropic, anisotropic", fitted(persistent(wide), centred=True)
    ),
    "ours, images": Method(
        "preset mnist-small", fitted(persistent(restart=0.1), centred=True, spectral_norm=0.5), plane=False
    ),
}  # fmt: skip
