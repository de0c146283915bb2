"""The training loop: one update is a positive phase, a negative phase, a clipped step. Readable top to bottom."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.errors import DivergenceError
from grbm.model import GRBM
from grbm.moments import Moments, centre, gradient
from grbm.objectives import Negative, Objective, positive
from grbm.randomness import generator
from grbm.samplers.langevin import LangevinOptions
from grbm.schedules import cosine

EXPLODED = 1e6  # root-mean-square gradient per parameter beyond which nothing sensible is being learned


@dataclass
class TrainState:
    """Everything that an update reads and changes; all randomness follows from (seed, update)."""

    model: GRBM
    optimizer: torch.optim.Optimizer
    seed: int = 0
    update: int = 0
    persistent: Tensor | None = None  # visible units of persistent chains
    average: GRBM | None = None  # exponential moving average of the parameters


class StepMetrics(NamedTuple):
    """Diagnostics of one update, as tensors so that reading them is the caller's choice."""

    grad_norm: Tensor
    positive: Moments
    negative: Negative


@torch.no_grad()
def train_step(
    state: TrainState,
    objective: Objective,
    v_data: Tensor,
    *,
    centred: bool = False,
    clip_norm: float | None = 10.0,
    min_var: float = 1e-8,
    average_decay: float | None = None,
) -> StepMetrics:
    """One update of ``state`` on the batch ``v_data`` (B, N).

    With ``centred`` the gradient is that of `grbm.moments.centre`. Its norm over all parameters together is clipped to
    ``clip_norm``; σ² is kept at or above ``min_var``.
    A gradient that is not finite, or absurdly large, raises `DivergenceError` and leaves the parameters as they were.
    """
    model, energy = state.model, state.model.freeze()
    _check_step_size(state, objective)
    rng = generator(state.seed, "update", state.update, device=v_data.device)
    data_term = positive(energy, v_data, rng, probabilities=objective.probabilities)
    negative = objective.negative(energy, v_data, state.persistent, rng)
    ascent = gradient(energy, data_term, negative.moments)
    for name, step in (centre(energy, ascent, data_term) if centred else ascent).items():
        model.get_parameter(name).grad = -step
    grad_norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    n_parameters = sum(p.numel() for p in model.parameters())
    if not grad_norm < EXPLODED * n_parameters**0.5:  # also where it is NaN
        raise DivergenceError(_explain(state, negative))
    if clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip_norm, grad_norm)
    state.optimizer.step()
    model.log_var.clamp_(min=torch.tensor(min_var).log().item())
    state.persistent = negative.persistent
    state.update += 1
    if average_decay is not None:
        _update_average(state, average_decay)
    return StepMetrics(grad_norm, data_term, negative)


def fit(
    state: TrainState,
    data: Tensor,
    objective: Objective,
    *,
    n_updates: int,
    batch_size: int = 100,
    centred: bool = False,
    clip_norm: float | None = 10.0,
    min_var: float = 1e-8,
    average_decay: float | None = None,
) -> Iterator[StepMetrics]:
    """Train up to update ``n_updates``, yielding after each; learning rates fall to 0 by the cosine (Eq. 22).

    Parameters
    ----------
    state : TrainState
        Where to start. The optimizer's own rate is where the cosine begins; the paper's is ``SGD(lr=0.01)``.
    data : Tensor
        (n, N), visited in a new random order each epoch; an incomplete last batch is left out.
    objective : Objective
        `ModifiedCD`, `CD`, `PCD` or your own.
    n_updates, batch_size, centred, clip_norm, min_var, average_decay
        As in the paper by default; see `train_step`.

    Raises
    ------
    DivergenceError
        When numbers leave the finite world; ``state.model`` keeps its last good parameters.
    ValueError
        If the data do not fit the model or hold non-finite numbers.
    """
    if data.ndim != 2 or data.shape[1] != state.model.n_visible:
        raise ValueError(f"data must be (n, {state.model.n_visible}), got shape {tuple(data.shape)}.")
    if not torch.isfinite(data).all():
        raise ValueError("data holds NaN or infinite numbers.")
    batch_size = min(batch_size, len(data))
    per_epoch = len(data) // batch_size
    epoch, order = -1, torch.empty(0)
    while state.update < n_updates:
        if state.update // per_epoch != epoch:
            epoch = state.update // per_epoch
            order = torch.randperm(len(data), generator=generator(state.seed, "order", epoch)).to(data.device)
        first = state.update % per_epoch * batch_size
        for group in state.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * cosine(state.update, n_updates)
        yield train_step(
            state,
            objective,
            data[order[first : first + batch_size]],
            centred=centred,
            clip_norm=clip_norm,
            min_var=min_var,
            average_decay=average_decay,
        )


def _update_average(state: TrainState, decay: float) -> None:
    """θ_avg ← d θ_avg + (1 − d) θ, with d growing to ``decay`` so that the start is forgotten."""
    if state.average is None:
        state.average = copy.deepcopy(state.model)
    weight = 1 - min(decay, (1 + state.update) / (10 + state.update))
    for average, parameter in zip(state.average.parameters(), state.model.parameters(), strict=True):
        average.lerp_(parameter, weight)


def _check_step_size(state: TrainState, objective: Objective) -> None:
    """Above α/(Tσ²) = 2 a Langevin proposal overshoots: unadjusted chains explode, adjusted ones reject everything."""
    if not isinstance(objective.sampler, LangevinOptions):
        return
    ratio, unit = objective.sampler.overshoot(state.model.freeze()).max(0)
    if ratio > 2:
        raise DivergenceError(
            f"Stopped before update {state.update}: the variance of visible unit {int(unit)} has fallen to "
            f"{state.model.var[unit]:.3g}, where the Langevin step overshoots (step/variance = {ratio:.3g} > 2); "
            f"use a step size per unit (per_unit), a smaller step_size, or a larger min_var."
        )


def _explain(state: TrainState, negative: Negative) -> str:
    """Name the visible unit that left the finite world first, and what to do."""
    slope = state.model.log_var.grad
    assert slope is not None
    bad = ~torch.isfinite(negative.moments.v2) | ~torch.isfinite(slope)
    unit = int(bad.nonzero()[0]) if bad.any() else int(slope.abs().argmax())
    return (
        f"Stopped at update {state.update}: the gradient of visible unit {unit} is {float(slope[unit]):.3g} "
        f"(its variance {float(state.model.var[unit]):.3g}, mean square of its chains "
        f"{float(negative.moments.v2[unit]):.3g}); lower the learning rate or the step size, or set a larger min_var."
    )
