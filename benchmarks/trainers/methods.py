"""The trainers by name: what each is, and how it learns a task at a rate for a number of updates.

All begin at the task's start but those whose start is their own, and share batch size, chains, clipping, the cosine of
the rate and the average of the parameters, so that what is compared is where the direction of ascent comes from. But
weighted walkers are five times as many as chains, the adaptive rate moves under a bound that falls by the cosine, and
ours have the batches, steps and averages of the presets. Updates of those that `grbm.fit` learns are native code as a
whole; the others pay PyTorch for each, which "CD-1, by this loop" tells.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import torch

from benchmarks.trainers import rules
from benchmarks.trainers.loops import Learned, Steps, follow
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
from grbm.core.errors import DivergenceError
from grbm.samplers import Sampler

CLIP, DECAY = 10.0, 0.999
N_NOISE = 50  # steps from noise of modified CD, half of the paper's
Learn = Callable[[Task, float, int, int], Learned]  # of a task, a rate, a number of updates, and a seed


class Method(NamedTuple):
    """A trainer, and where it is from."""

    source: str
    learn: Learn
    ground: Literal["plane", "images", "both"] = "both"  # the tasks that it is for
    counted: bool = True  # whether it is run at equal updates; False where they take many times the seconds of others

    def learns(self, task: Task, budget: str) -> bool:
        """Whether the bench has it learn a task at equal "seconds" or "updates"."""
        ground = "plane" if task.rows.shape[1] == 2 else "images"
        return self.ground in ("both", ground) and (self.counted or budget == "seconds")


def fitted(objective: Callable[[Task], Objective], *, start: Callable[[GRBM, Task, int], object] | None = None,
           **options: object) -> Learn:  # fmt: skip
    """By `grbm.fit` with SGD."""

    def learn(task: Task, rate: float, n_updates: int, seed: int) -> Learned:
        model = task.machine(seed)
        if start is not None:
            start(model, task, seed)
        groups = [
            {"params": [p for name, p in model.named_parameters() if name != "log_var"], "lr": rate},
            {"params": [model.log_var], "lr": rate * task.variance_rate},
        ]
        state = TrainState(model, torch.optim.SGD(groups), seed=seed)
        usual = {"batch_size": task.batch_size, "clip_norm": CLIP, "min_var": task.min_var, "average_decay": DECAY}
        how = FitOptions(n_updates, **(usual | options))  # type: ignore[arg-type]
        try:
            for _ in fit(state, task.rows, objective(task), how):
                pass
        except DivergenceError:
            pass  # the last good parameters are its result
        return Learned(state.average or model, state.update)

    return learn


def ruled(
    rule: Callable[[Task, int], Rule],
    *,
    adaptive: bool = False,
    start: Callable[[GRBM, Task, int], object] | None = None,
) -> Learn:
    """By a rule of `rules`, made for a task and a number of updates.

    ``adaptive`` by the rate of Cho et al., of which the rate given is where it begins.
    """

    def learn(task: Task, rate: float, n_updates: int, seed: int) -> Learned:
        found = rule(task, n_updates)
        steps = Steps(rate, task.batch_size, task.variance_rate, CLIP, task.min_var, DECAY)
        if adaptive:
            chains: Chains = found.chains  # type: ignore[attr-defined]
            steps = replace(steps, adaptive=lambda: chains.last)
        model = task.machine(seed)
        if start is not None:
            start(model, task, seed)
        return follow(model, found, task.rows, n_updates, steps, seed)

    return learn


def persistent(
    sampler: Callable[[Task], Sampler] = lambda task: Gibbs(), n_steps: int = 5, **options: float
) -> Callable[[Task], PCD]:
    return lambda task: PCD(sampler(task), n_steps, task.n_chains, probabilities=True, **options)


def from_noise(sampler: Sampler) -> Callable[[Task], ModifiedCD]:
    return lambda task: ModifiedCD(sampler, N_NOISE, n_chains=task.n_chains, probabilities=True)


def tempered(task: Task) -> Tempering:
    return Tempering(task.base, 8)


def temperature_100(task: Task) -> GibbsLangevin:
    """Proposals wider than the model, tested at temperature 1: exact moves from anywhere to anywhere."""
    del task
    return GibbsLangevin(step_size=10.0, temperature=100.0, accept_temperature=1.0, adjust_from=0)


@torch.no_grad()
def rarely_active(model: GRBM, task: Task, seed: int) -> None:
    """`sparse_` with one variance for all units."""
    share = 0.01
    sparse_(model, task.rows, share=share, seed=seed)
    model.log_var.fill_(float(model.var.mean().log()))
    centres, squares = model.mu[:, None] + model.W, model.mu.square()[:, None]
    model.b.copy_(math.log(share) - 0.5 * ((centres.square() - squares) / model.var[:, None]).sum(0))


def one_step(task: Task, n_updates: int) -> Rule:
    """CD-1 as a rule."""
    del task, n_updates
    return rules.Frozen(inner=1, n_steps=1)


LOCAL = {"per_unit": True}
METHODS: dict[str, Method] = {
    "modified CD, Gibbs": Method("Liao et al. 2022", fitted(from_noise(Gibbs()))),
    "modified CD, Langevin": Method("the same", fitted(from_noise(Langevin(0.5, **LOCAL)))),
    "modified CD, Langevin adjusted": Method("the same", fitted(from_noise(Langevin(0.5, adjust_from=0, **LOCAL)))),
    "modified CD, Gibbs-Langevin": Method("the same", fitted(from_noise(GibbsLangevin(0.2, **LOCAL)))),
    "modified CD, Gibbs-Langevin, step 0.04": Method(
        "the same", fitted(from_noise(GibbsLangevin(0.04, **LOCAL))), "images"
    ),
    "modified CD, Gibbs-Langevin adjusted": Method(
        "the same", fitted(from_noise(GibbsLangevin(0.2, adjust_from=0, **LOCAL)))
    ),
    "modified CD, temperature-100 proposals": Method(
        "their program, which tests them at temperature 1", fitted(lambda task: from_noise(temperature_100(task))(task))
    ),
    "CD-1": Method("Hinton 2002", fitted(lambda task: CD(Gibbs(), 1, probabilities=True))),
    "CD-1, by this loop": Method("the same", ruled(one_step)),
    "CD-5": Method("the same", fitted(lambda task: CD(Gibbs(), 5, probabilities=True))),
    "CD-10": Method("the same", fitted(lambda task: CD(Gibbs(), 10, probabilities=True))),
    "PCD": Method("Tieleman 2008", fitted(persistent())),
    "PCD, centred": Method("Montavon & Müller 2012; Melchior et al. 2016", fitted(persistent(), centred=True)),
    "PCD, centred, 30 steps, 1,000 rows": Method(
        "the same, with the work of ours", fitted(persistent(n_steps=30), centred=True, batch_size=1000), "plane"
    ),
    "PCD, tempered": Method("Desjardins et al. 2010; Cho et al. 2011", fitted(persistent(tempered))),
    "PCD, enhanced": Method(
        "Cho, Raiko & Ilin 2011", ruled(lambda task, n: rules.Enhanced(Chains(Gibbs(), 5, task.n_chains)))
    ),
    "PCD, enhanced, tempered, adaptive": Method(
        "Cho, Ilin & Raiko 2011",
        ruled(lambda task, n: rules.Enhanced(Chains(tempered(task), 5, task.n_chains)), adaptive=True),
    ),
    "CD-1, rarely active start, one variance": Method(
        "Melchior et al. 2017; Krizhevsky 2009",
        ruled(lambda task, n: rules.shared_variance(one_step(task, n)), start=rarely_active),
        ground="images",
    ),
    "CD-1, sparse": Method("Lee et al. 2008", ruled(lambda task, n: rules.Sparse(one_step(task, n)))),
    "S-DCP": Method("Upadhya & Sastry 2021", ruled(lambda task, n: rules.Frozen(inner=5, n_steps=1))),
    "score matching": Method("Hyvärinen 2005", ruled(lambda task, n: rules.ScoreMatching(task.base.var))),
    "denoising": Method("Vincent 2011", ruled(lambda task, n: rules.Denoising(task.base.var.sqrt(), n))),
    "naive mean field": Method("order 1 of the next", ruled(lambda task, n: rules.MeanField(1))),
    "TAP": Method("Gabrié et al. 2015; Tramel et al. 2018", ruled(lambda task, n: rules.MeanField(2))),
    "naive mean field, by exp(−Γ)": Method(
        "fixed points by their weights", ruled(lambda task, n: rules.MeanField(1, weighted=True))
    ),
    "TAP, by exp(−Γ)": Method(
        "fixed points by their weights", ruled(lambda task, n: rules.MeanField(2, weighted=True))
    ),
    "weighted walkers": Method("Carbone et al. 2023", ruled(lambda task, n: rules.Weighted(5 * task.n_chains))),
    "PCD, along the trajectory": Method(
        "Béreux et al. 2024", fitted(persistent(lambda task: TrajectoryTempering(base=task.base))), counted=False
    ),
    "PCD, spectral": Method("Carlson et al. 2015 (arXiv:1703.09766)", fitted(persistent(), spectral_norm=0.5)),
    "PCD, centred, spectral": Method("both together", fitted(persistent(), centred=True, spectral_norm=0.5)),
    "ours, plane": Method(
        "presets isotropic, anisotropic",
        fitted(persistent(temperature_100, 30), centred=True, batch_size=1000),
        "plane",
    ),
    "ours, plane, 5 steps, 500 rows": Method(
        "the same, with the work of PCD", fitted(persistent(temperature_100), centred=True), "plane"
    ),
    "ours, images": Method(
        "preset mnist-small",
        fitted(persistent(restart=0.1), centred=True, spectral_norm=0.5, average_decay=0.99),
        "images",
    ),
}  # fmt: skip
