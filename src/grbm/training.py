"""The training loop: one update is a positive phase, a negative phase, a clipped step. Readable top to bottom."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from grbm.distributed import ALONE, Share
from grbm.errors import DivergenceError
from grbm.model import GRBM, Energy, Precision
from grbm.moments import Moments, MomentSum, ascent, centre
from grbm.objectives import Negative, Objective, adapts, positive, with_sampler
from grbm.randomness import generator
from grbm.samplers import Sampler
from grbm.samplers.chains import Swaps
from grbm.samplers.langevin import LangevinOptions
from grbm.schedules import cosine

CHECK_EVERY = 25  # updates after which a GPU is waited for, to see whether the numbers are still sensible
EXPLODED = 1e6  # root-mean-square gradient per parameter beyond which nothing sensible is being learned


@dataclass
class TrainState:
    """Everything that an update reads and changes; all randomness follows from (seed, update)."""

    model: GRBM
    optimizer: torch.optim.Optimizer
    seed: int = 0
    update: int = 0
    persistent: Tensor | None = None  # visible units (..., C, N) of this process's persistent chains
    average: GRBM | None = None  # exponential moving average of the parameters
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the sampler has adapted, such as a ladder
    adapted: tuple[Sampler, Sampler] | None = None  # a sampler and itself with this memory, which is slow to make anew
    last_good: dict[str, Tensor] | None = None  # the last parameters whose gradient was known to be sensible
    broken: Tensor | None = None  # on a GPU: whether some gradient since then was not, which stops learning

    def settle(self) -> None:
        """Wait for the device, and raise DivergenceError if an update since `last_good` was broken."""
        if self.broken is not None and self.broken:
            self.model.load_state_dict(self.last_good or self.model.state_dict())
            self.broken = None
            raise DivergenceError(
                f"Stopped at update {self.update}: in the last {CHECK_EVERY} updates the gradient was no longer a "
                f"sensible number; lower the learning rate or the step size, or set a larger min_var."
            )


class StepMetrics(NamedTuple):
    """Diagnostics of one update, as tensors so that reading them is the caller's choice."""

    grad_norm: Tensor
    data_mean_h: Tensor  # (M,), over the whole batch
    accept_prob: Tensor | None  # mean over all chains
    swap_rate: Tensor | None  # (R − 1,), mean over all chains, of neighbouring replicas
    negative: Negative  # of this process's chains


class Rows(Protocol):
    """Standardised data (n, N), a tensor or read from elsewhere: indexed by a tensor of row numbers."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, which: Tensor, /) -> Tensor: ...


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
    n_blocks: int = 1,
    share: Share = ALONE,
    precision: Precision = "highest",
) -> StepMetrics:
    """One update of ``state`` on the batch ``v_data`` (B, N), or on this process's ``share`` of its rows.

    With ``centred`` the gradient is that of `grbm.moments.centre`. Its norm over all parameters together is clipped to
    ``clip_norm``; σ² is kept at or above ``min_var``.
    A gradient that is not finite, or absurdly large, raises `DivergenceError` and takes the parameters back to the last
    ones whose gradient was neither; on a GPU, which is not waited for at every update, within CHECK_EVERY updates. The
    optimizer's own state is left as it is.
    """
    model, energy = state.model, state.model.freeze(precision)
    original, adaptive = objective.sampler, adapts(objective)
    sampler = _adapted(state, original) if adaptive else original
    objective = with_sampler(objective, sampler)
    deferred = _is_deferred(energy)
    checks = not deferred or state.update % CHECK_EVERY == 0
    if checks:
        _check_step_size(state.update, energy, objective)
    rng = share.blocks(n_blocks, state.seed, "update", state.update, device=v_data.device)
    data_term = positive(energy, v_data, rng, probabilities=objective.probabilities)
    negative = objective.negative(energy, v_data, state.persistent, rng)
    pooled = _pool(share, data_term, negative)
    steps = ascent(energy, pooled.difference)
    if centred:
        steps = centre(energy, steps, pooled.data_v, pooled.data_h)
    for name, step in steps.items():
        model.get_parameter(name).grad = -step
    grad_norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    n_parameters = sum(p.numel() for p in model.parameters())
    broken = ~(grad_norm < EXPLODED * n_parameters**0.5)  # also where it is NaN
    if deferred:
        broken = state.broken = broken if state.broken is None else broken | state.broken
    if checks and broken:
        model.load_state_dict(state.last_good or model.state_dict())
        state.broken = None
        raise DivergenceError(_explain(state.update, energy, pooled.chains_v2, steps["log_var"]))
    if checks:
        state.last_good = {name: p.clone() for name, p in model.state_dict().items()}
    if clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip_norm, grad_norm)
    if state.broken is not None:  # after the clipping, whose factor may be NaN
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.masked_fill_(state.broken, 0.0)
    state.optimizer.step()
    model.log_var.clamp_(min=math.log(min_var))
    state.persistent = negative.persistent
    if pooled.swap_rate is not None and adaptive and checks:  # which looks at numbers, so a GPU is waited for
        adapted = sampler.adapted(energy, pooled.swap_rate)
        state.adapted = original, adapted
        if adapted is not sampler:
            state.memory = adapted.memory
    state.update += 1
    if average_decay is not None:
        _update_average(state, average_decay)
    return StepMetrics(grad_norm, pooled.data_h, pooled.accept_prob, pooled.swap_rate, negative)


def fit(
    state: TrainState,
    data: Tensor | Rows,
    objective: Objective,
    *,
    n_updates: int,
    batch_size: int = 100,
    centred: bool = False,
    clip_norm: float | None = 10.0,
    min_var: float = 1e-8,
    average_decay: float | None = None,
    n_blocks: int | None = None,
    share: Share = ALONE,
    precision: Precision = "highest",
    anneal_step_size: bool = False,
) -> Iterator[StepMetrics]:
    """Train up to update ``n_updates``, yielding after each; learning rates fall to 0 by the cosine (Eq. 22).

    Parameters
    ----------
    state : TrainState
        Where to start. The optimizer's own rate is where the cosine begins; the paper's is ``SGD(lr=0.01)``.
    data : Tensor or Rows
        (n, N), all of it in every process, visited in a new random order each epoch; an incomplete last batch is left
        out.
    objective : Objective
        `ModifiedCD`, `CD`, `PCD` or your own.
    n_updates, batch_size, centred, clip_norm, min_var, average_decay
        As in the paper by default; see `train_step`.
    n_blocks : int, optional
        Blocks of rows and chains with random numbers and sums of their own. They are what processes and threads share,
        so with the same number of blocks any number of processes learns the same parameters. By default 4, or fewer
        where 4 do not divide batch and chains.
    share : Share
        This process's part; by default all.
    precision : {"highest", "high", "fast"}
        Of the operands of products in the chains: float32, TF32, or half precision; see `grbm.model.Energy`.
    anneal_step_size : bool
        Let the sampler's ``step_size`` fall like the learning rate (the paper's annealed α₀).

    Raises
    ------
    DivergenceError
        When numbers leave the finite world; ``state.model`` keeps its last good parameters.
    ValueError
        If the data do not fit the model or hold non-finite numbers, or if blocks, batch, chains and processes do not
        divide evenly.
    """
    if len(data.shape) != 2 or data.shape[1] != state.model.n_visible:
        raise ValueError(f"data must be (n, {state.model.n_visible}), got shape {tuple(data.shape)}.")
    if isinstance(data, Tensor) and not torch.isfinite(data).all():
        raise ValueError("data holds NaN or infinite numbers.")
    batch_size = min(batch_size, len(data))
    n_chains = getattr(objective, "n_chains", None) or batch_size
    n_blocks = math.gcd(4, batch_size, n_chains) if n_blocks is None else n_blocks
    if n_blocks % share.world or batch_size % n_blocks or n_chains % n_blocks:
        raise ValueError(
            f"{n_blocks} blocks must divide the {batch_size} rows of a batch and the {n_chains} chains evenly, and be "
            f"divided by the {share.world} processes."
        )
    per_epoch = len(data) // batch_size
    epoch, order = -1, torch.empty(0)
    while state.update < n_updates:
        if state.update // per_epoch != epoch:
            epoch = state.update // per_epoch
            order = torch.randperm(len(data), generator=generator(state.seed, "order", epoch))
            order = order.to(data.device) if isinstance(data, Tensor) else order
        first = state.update % per_epoch * batch_size
        rows = order[first : first + batch_size][share.part(batch_size)]
        for group in state.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * cosine(state.update, n_updates)
        now = objective
        if anneal_step_size:
            sampler: Any = objective.sampler
            now = with_sampler(
                objective, replace(sampler, step_size=sampler.step_size * cosine(state.update, n_updates))
            )
        yield train_step(
            state,
            now,
            data[rows],
            centred=centred,
            clip_norm=clip_norm,
            min_var=min_var,
            average_decay=average_decay,
            n_blocks=n_blocks,
            share=share,
            precision=precision,
        )
    state.settle()


class _Pooled(NamedTuple):
    """What learning needs of all processes' rows and chains."""

    difference: Moments  # float64: positive minus negative
    data_v: Tensor  # (N,)
    data_h: Tensor  # (M,)
    chains_v2: Tensor  # (N,)
    accept_prob: Tensor | None
    swap_rate: Tensor | None


def _pool(share: Share, data: MomentSum, negative: Negative) -> _Pooled:
    """Means over all processes from one exchange.

    The difference of means is brought to one denominator first, so that what is added are whole sums, which float64
    holds exactly, and one W-shaped tensor travels in place of two.
    """
    p, n = data.total(), negative.sums.total()
    small = [p.v.clone(), p.h.clone(), n.v2.clone()]
    difference = (a.mul_(negative.sums.count).sub_(b, alpha=data.count) for a, b in zip(p, n, strict=True))
    accept = [] if negative.accept_prob is None else [negative.accept_prob]
    swaps = [] if negative.swaps is None else [negative.swaps.total]
    sums = share.sum(*difference, *small, *accept, *swaps)
    n_data, n_states = data.count * share.world, negative.sums.count * share.world
    mean_difference = Moments(*(x.mul_(share.world / (n_data * n_states)) for x in sums[:4]))
    like = negative.v
    data_v, data_h, chains_v2 = sums[4].to(like) / n_data, sums[5].to(like) / n_data, sums[6].to(like) / n_states
    accept_prob = sums[7] / share.world if accept else None
    swap_rate = None
    if negative.swaps is not None:
        swap_rate = Swaps(sums[-1].clone(), negative.swaps.number * share.world).rate()
    return _Pooled(mean_difference, data_v, data_h, chains_v2, accept_prob, swap_rate)


def _adapted(state: TrainState, sampler: Sampler) -> Sampler:
    """The sampler as it has adapted up to here."""
    if state.adapted is not None and state.adapted[0] is sampler:
        return state.adapted[1]
    return sampler.recalling(state.memory) if state.memory else sampler


def _is_deferred(energy: Energy) -> bool:
    """Whether looking at a number would make the host wait for the device."""
    return energy.W.is_cuda


def _update_average(state: TrainState, decay: float) -> None:
    """θ_avg ← d θ_avg + (1 − d) θ, with d growing to ``decay`` so that the start is forgotten."""
    if state.average is None:
        model = state.model
        state.average = GRBM(model.n_visible, model.n_hidden, device=model.W.device, dtype=model.W.dtype)
        state.average.load_state_dict(model.state_dict())
    weight = 1 - min(decay, (1 + state.update) / (10 + state.update))
    for average, parameter in zip(state.average.parameters(), state.model.parameters(), strict=True):
        average.lerp_(parameter, weight)


def _check_step_size(update: int, energy: Energy, objective: Objective) -> None:
    """Above α/(Tσ²) = 2 a Langevin proposal overshoots: unadjusted chains explode, adjusted ones reject everything."""
    if not isinstance(objective.sampler, LangevinOptions):
        return
    ratio, unit = objective.sampler.overshoot(energy).max(0)
    if ratio > 2:
        raise DivergenceError(
            f"Stopped before update {update}: the Langevin step is {float(ratio):.3g} variances of visible unit "
            f"{int(unit)} (variance {float(energy.var[unit]):.3g}), and above 2 it overshoots; use a step size per "
            f"unit (per_unit), a smaller step_size, or a larger min_var."
        )


def _explain(update: int, energy: Energy, chains_v2: Tensor, slope: Tensor) -> str:
    """Name the visible unit that left the sensible world first, and what to do."""
    log_var = energy.var.log()
    bad = ~torch.isfinite(log_var + chains_v2 + slope)
    unit = int((log_var.abs().nan_to_num(torch.inf) + 1e6 * bad).argmax())
    slower = "lower the learning rate or the step size"
    remedy = f"set a larger min_var, or {slower}" if log_var[unit] < 0 else slower
    return (
        f"Stopped at update {update}: the gradient is no longer a sensible number, worst at visible unit {unit} "
        f"(variance {float(energy.var[unit]):.3g}, mean square of its chains {float(chains_v2[unit]):.3g}); "
        f"{remedy}."
    )
