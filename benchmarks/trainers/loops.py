"""Loops that follow a rule: stochastic ascent as `grbm.fit` does it, and the adaptive rate of Cho et al."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.trainers.rules import Ascent, Rule
from grbm import GRBM
from grbm.core.randomness import Blocks, generator, seed_of
from grbm.core.schedules import cosine
from grbm.samplers.annealing import importance

CANDIDATES = (1.0, 1.01, 0.99)
FEWEST = 0.5  # share of particles that must count for a rate to be judged by them
HIGHEST = 10.0  # times the first rate: the bound of an adaptive one, which falls by the cosine


@dataclass(frozen=True)
class Steps:
    """The steps of stochastic ascent."""

    rate: float = 0.01  # at the start; falls to 0 by a cosine
    batch_size: int = 100
    variance_rate: float = 1.0  # share of it for log σ²
    clip_norm: float | None = 10.0
    min_var: float = 1e-4
    decay: float = 0.999  # of the average of the parameters, which is the result
    adaptive: Callable[[], Tensor] | None = None  # gives particles, by which the rate is chosen (`best_rate`)


class Learned(NamedTuple):
    """The average of a machine's parameters, and how many updates were made: fewer than asked where it diverged."""

    model: GRBM
    n_updates: int


@torch.no_grad()
def follow(model: GRBM, rule: Rule, data: Tensor, n_updates: int, steps: Steps, seed: int) -> Learned:
    """Follow a rule from ``model``, which moves; returns the average of its parameters.

    A direction that is not finite ends it, with the average so far, as `grbm.fit` ends.
    """
    rate, average = steps.rate, copy.deepcopy(model)
    batches = _batches(len(data), steps.batch_size, seed)
    chosen = next(batches)
    for update in range(n_updates):
        direction = rule(model, data[chosen], Blocks(seed_of(seed, "update", update), 1))
        chosen = next(batches)
        if not all(bool(x.isfinite().all()) for x in direction.values()):
            return Learned(average, update)
        direction = clipped(direction, steps.clip_norm)
        direction["log_var"] = steps.variance_rate * direction["log_var"]
        particles = None if steps.adaptive is None else steps.adaptive()
        if particles is None:
            now = rate * cosine(update, n_updates)
        else:
            bounds = (1e-6, HIGHEST * steps.rate * cosine(update, n_updates))
            rate = now = best_rate(model, direction, rate, data[chosen], particles, bounds)
        climb(model, direction, now, steps.min_var)
        forgets = min(steps.decay, (update + 1) / (update + 10))
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 1 - forgets)
    return Learned(average, n_updates)


@torch.no_grad()
def climb(model: GRBM, direction: Ascent, rate: float, min_var: float) -> None:
    """A step of ``rate`` along a direction; variances stay at ``min_var`` or above."""
    for name, parameter in model.named_parameters():
        parameter.add_(rate * direction[name])
    model.log_var.clamp_(min=torch.tensor(min_var).log().item())


def clipped(direction: Ascent, norm: float | None) -> Ascent:
    """Shortened to that norm over all parameters together."""
    if norm is None:
        return direction
    factor = min(1.0, norm / (float(torch.nn.utils.get_total_norm(list(direction.values()))) + 1e-6))
    return {name: factor * x for name, x in direction.items()}


def best_rate(
    model: GRBM,
    direction: Ascent,
    rate: float,
    batch: Tensor,
    particles: Tensor,
    bounds: tuple[float, float] = (1e-6, 1.0),
) -> float:
    """Of a rate, one a hundredth larger and one smaller, that which the next batch likes best (Cho et al. 2011).

    Its log-likelihood per row moves by what its mean free energy falls, less log Z', of which ``particles`` (C, N) of
    the machine before tell the change. A rate by which too few of them count is not judged, and not taken.
    """
    before = model.freeze().free_energy(particles).double()
    best, found = -torch.inf, CANDIDATES[-1] * rate
    for factor in CANDIDATES:
        moved = copy.deepcopy(model)
        climb(moved, direction, factor * rate, 0.0)
        energy = moved.freeze()
        log_ratio, n_count = importance(before - energy.free_energy(particles).double())
        value = -float(energy.free_energy(batch).double().mean()) - float(log_ratio)
        if float(n_count) >= FEWEST * len(particles) and value > best:
            best, found = value, factor * rate
    return min(max(found, bounds[0]), bounds[1])


def _batches(n: int, size: int, seed: int) -> Iterator[Tensor]:
    """Batches of row numbers without end, each pass in another order."""
    one_pass = 0
    size = min(size, n)
    while True:
        order = torch.randperm(n, generator=generator(seed, "pass", one_pass))
        yield from (order[k : k + size] for k in range(0, n - size + 1, size))
        one_pass += 1
