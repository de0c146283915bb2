"""The algorithm, readable top to bottom: an update is a positive phase, a negative phase and a clipped step uphill."""

import copy
import math
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from grbm.core.distributed import ALONE, ProcessGroup
from grbm.core.errors import ScaleWarning
from grbm.core.options import FitOptions, Precision
from grbm.core.randomness import Blocks, Rng, generator, seed_of
from grbm.core.rows import Rows, rows_of
from grbm.core.schedules import cosine
from grbm.learning.descent import clip_factor, descend, number_for, phases_at_once, pool, set_gradients, shorten
from grbm.learning.guard import Guard, is_deferred, looks
from grbm.learning.objectives import Negative, Objective, as_objective, positive
from grbm.learning.quasi_newton import LEAST, ROWS, Curvature, Draws, climb, draw, height
from grbm.learning.recorded import Recorded, average_weight, can_record
from grbm.learning.spectral import equalise
from grbm.learning.state import StepMetrics, TrainState
from grbm.model import GRBM, Energy
from grbm.model.censoring import UNCENSORED
from grbm.samplers import run_chains
from grbm.samplers.conditional import Conditional
from grbm.samplers.engines import engine_for, native_learning
from grbm.samplers.moments import MomentSum

WEIGH_EVERY = 25  # updates, after which contrasts are weighed anew
FELL = 1.0  # nats a row, beyond which a round has led down
FAR = 50.0  # standard deviations of visible units, beyond which rows are in other units than a model that begins
FRESH = 0.3  # weight of a round's parameters in their average, which evens out what its own draws brought in


@torch.no_grad()
def train_step(
    state: TrainState,
    objective: Objective,
    v_data: Tensor,
    options: FitOptions = FitOptions(),
    *,
    precision: Precision = "highest",
    group: ProcessGroup = ALONE,
) -> StepMetrics:
    """Make one update of ``state`` on the batch ``v_data`` (B, N), or on this process's part of its rows.

    The options ``n_updates``, ``batch_size`` and ``anneal_step_size`` are those of `fit`, and change nothing here. The
    learning rate is the optimizer's.
    A gradient that is not finite, or absurdly large, raises `DivergenceError` and takes the parameters back to the last
    ones whose gradient was neither (`grbm.learning.guard`); the optimizer's own state is left as it is.
    """
    return _step(state, as_objective(objective), options, precision, group, v_data)


@torch.no_grad()
def _step(
    state: TrainState, objective: Objective, options: FitOptions, precision: Precision, group: ProcessGroup,
    v_data: Tensor, rng: Blocks | None = None, weight: float | Tensor | None = None,
) -> StepMetrics:  # fmt: skip
    """`train_step`, where the update's random numbers and the average's ``weight`` may be given."""
    model, energy = state.model, state.model.freeze(precision)
    adapted = state.adaptation.applied(objective)
    if rng is None:
        n_blocks = options.n_blocks(len(v_data) * group.world_size, adapted.n_chains)
        rng = group.blocks(n_blocks, state.seed, "update", state.update, device=v_data.device)

    v_data = model.contrasts.removed(v_data, partial(engine_for(energy.W, rng).free_energy, energy), rng)
    v_data = latent_rows(model, energy, v_data, options, rng)
    found = phases_at_once(model, energy, adapted, v_data, state.persistent, rng, group, centred=options.centred)
    if found is None:
        data = positive(energy, v_data, rng, probabilities=adapted.data_probabilities)  # ⟨−∂E/∂θ⟩ at the data,
        chains = adapted.negative(energy, v_data, state.persistent, rng)  # and under the chains
        pooled = pool(data, chains, group)
        grad_norm = set_gradients(model, energy, pooled, centred=options.centred)  # Eqs. 14-17, 33-36
    else:
        chains, pooled, grad_norm = found
    state.guard.check(model, energy, adapted.sampler, state.update, grad_norm, pooled.mean_v2)
    factor = clip_factor(grad_norm, options.clip_norm)
    if options.spectral_norm is not None:
        shorten(model, factor)
        equalise(model, energy, pooled, options.spectral_norm, centred=options.centred)
        factor = 1.0
    descend(model, state.optimizer, factor, options.min_var, state.guard.broken)

    state.persistent, state.curvature, state.drawn = chains.persistent, None, None
    if looks(state.update, energy.W):
        state.adaptation.learn(objective, energy, pooled.swap_rate)
    state.update += 1
    if options.average_decay is not None:
        _update_average(state, average_weight(state.update, options.average_decay) if weight is None else weight)
    return StepMetrics(grad_norm, pooled.mean_h, pooled.accept_rate, pooled.swap_rate, chains)


def latent_rows(model: GRBM, energy: Energy, x: Tensor, options: FitOptions, rng: Rng) -> Tensor:
    """Rows x (n, N) with what lies at a limit drawn from the model: itself where no unit is censored."""
    if model.censoring is UNCENSORED:
        return x
    within = model.censoring.interval(x)
    if options.latent_depth is not None:
        within = within.within(options.latent_depth)
    return run_chains(energy, Conditional.of(within), x, options.latent_rounds, rng).chains.v


@torch.no_grad()
def train_round(
    state: TrainState,
    objective: Objective,
    data: Tensor | Rows,
    options: FitOptions = FitOptions(),
    *,
    group: ProcessGroup = ALONE,
) -> StepMetrics:
    """Make one round of quasi-Newton steps up the log-likelihood of ``data`` (n, N), or of 4,096 rows of it.

    Where ``options.prior`` is not 0 they go up the log-posterior.

    The first round begins at the average of the parameters where there is one, which goes on over rounds. Processes
    that share a run share the chains, and all climb alike. Fresh draws tell what a round was worth: the parameters are
    taken back to where it began if it has led out of the finite numbers, or down by more than `FELL`, which only draws
    of a reference can tell.
    """
    model, sampler, prior = state.model, state.adaptation.applied(objective).sampler, options.prior / len(data)
    curvature = state.curvature or Curvature.empty(torch.nn.utils.parameters_to_vector(model.parameters()))
    if state.curvature is None and state.average is not None:
        model.load_state_dict(state.average.state_dict())
    machines = [machine for machine in (model, state.average) if machine is not None]
    began_with = [copy.deepcopy(machine.state_dict()) for machine in machines]
    seed, device = seed_of(state.seed, "round", state.update), model.W.device
    rows = data[torch.randperm(len(data), generator=generator(seed, "rows"))[:ROWS].to(_device_of(data))]
    rows = model.at_unit_contrast(rows, generator(seed, "contrasts", device=rows.device))
    rows = latent_rows(model, model.freeze(), rows, options, generator(seed, "latent", device=rows.device))
    chains = state.persistent
    if chains is None:
        chains = sampler.noise(model.freeze(), objective.n_chains or len(rows), generator(seed))
    else:
        chains = group.all_gather(chains)
    energy = model.freeze()
    drawn = state.drawn or draw(energy, sampler, chains, Blocks(seed, 1, device=device), seed=state.seed)
    state.curvature, began, reached = climb(model, rows, drawn.draws, curvature, min_var=options.min_var, prior=prior)
    if state.average is not None:
        follow(state.average, model, began, rows, drawn.draws, prior)
    own = group.part(chains.shape[-2])
    state.persistent = drawn.chains[..., own, :].contiguous()
    state.update, state.guard = state.update + 1, Guard()
    following = Blocks(seed_of(state.seed, "round", state.update), 1, device=device)
    state.drawn = draw(model.freeze(), sampler, group.all_gather(state.persistent), following, seed=state.seed)
    fresh = rows.double(), state.drawn.draws
    now, there = (height(machine.to(torch.float64), *fresh, prior) for machine in (model.freeze(), energy))
    had = there.value if there.share >= LEAST else began  # by the same draws, where they tell
    if not math.isfinite(now.value) or (drawn.log_weights is not None and now.value < had - FELL):
        for machine, was in zip(machines, began_with, strict=True):
            machine.load_state_dict(was)
        state.curvature, state.drawn = curvature, None
    data_h = energy.hidden_logits(rows).sigmoid()
    sums = MomentSum.empty(energy)
    sums.add(drawn.last, energy.hidden_logits(drawn.last).sigmoid())
    negative = Negative(sums, state.persistent, drawn.accept_rate, drawn.last[own])
    return StepMetrics(reached.gradient.norm(), data_h.mean(0), drawn.accept_rate, None, negative)


@torch.no_grad()
def follow(average: GRBM, model: GRBM, began: float, rows: Tensor, draws: Draws, prior: float) -> None:
    """Move the average by its share towards the model, where a round has ended.

    All the way where the average would have a `height` below ``began``, that with which the round began, or too
    few of its draws a weight: between parameters that lie far apart there are worse ones.
    """
    followed = copy.deepcopy(average)
    for moved, parameter in zip(followed.parameters(), model.parameters(), strict=True):
        moved.lerp_(parameter, FRESH)
    reached = height(followed.freeze().to(torch.float64), rows.double(), draws, prior)
    is_good = reached.share >= LEAST and reached.value >= began
    average.load_state_dict((followed if is_good else model).state_dict())


def _device_of(data: Tensor | Rows) -> torch.device | str:
    """Where the numbers of rows belong."""
    return data.device if isinstance(data, Tensor) else "cpu"


def fit(
    state: TrainState,
    data: Tensor | Rows | Dataset[Any] | DataLoader[Any],
    objective: Objective,
    options: FitOptions = FitOptions(),
    *,
    precision: Precision = "highest",
    group: ProcessGroup = ALONE,
) -> Iterator[StepMetrics]:
    """Train up to update ``options.n_updates``; learning rates fall to 0 by the cosine (Eq. 22).

    The last ``options.rounds`` updates are rounds of quasi-Newton steps (`train_round`).

    What is returned is an iterator that makes an update for each `StepMetrics` it yields: nothing is learned before it
    is iterated over, and training can be looked at, or left, after any update. A state that has come to update
    ``options.n_updates`` is trained no further, with a warning. On a GPU most updates are replayed as one CUDA graph
    (`grbm.learning.recorded`), and what they yield has no sums of the negative phase.

    Parameters
    ----------
    state : TrainState
        Where to start. The optimizer's own rate is where the cosine begins, which takes the place of any schedule of
        yours (`train_step` keeps the rate); the paper's is ``SGD(lr=0.01)``.
    data : Tensor, Rows, Dataset or DataLoader
        (n, N), all of it in every process, visited in a new random order each epoch; an incomplete last batch is left
        out unless ``options.keep_last``. The items of PyTorch's data sets are flattened; of a DataLoader the data set
        is taken, since the order of rows follows from the seed, and ``options.batch_size`` makes batches.
    objective : Objective
        `ModifiedCD`, `CD`, `PCD` or your own.
    options : FitOptions
        How many updates, of how many rows, and how the gradient is followed.
    precision : {"highest", "high", "fast"}
        Of the operands of products in the chains: float32, TF32, or half precision; see `grbm.model.Energy`.
    group : ProcessGroup
        The processes that share the run; by default this one alone.

    Raises
    ------
    DivergenceError
        If a parameter or gradient is no longer finite; ``state.model`` keeps its last good parameters.
    TypeError, ValueError
        At once, if something is not what it should be: options, an objective, data that fit the model and are finite,
        and blocks that the processes can share.
    """
    if not isinstance(state, TrainState):
        raise TypeError(f"state must be a grbm.TrainState(model, optimizer), got {type(state).__name__}.")
    if not isinstance(options, FitOptions):
        raise TypeError(f"options must be an object such as grbm.FitOptions(n_updates=100), got {options!r}.")
    if options.spectral_norm is not None and not isinstance(state.optimizer, torch.optim.SGD):
        raise ValueError(f"spectral_norm goes with torch.optim.SGD, not with {type(state.optimizer).__name__}.")
    if isinstance(state.optimizer, torch.optim.LBFGS):
        raise TypeError(
            "LBFGS calls a closure, which a gradient by sampling has not; FitOptions(rounds=...) is its like."
        )
    learned = {id(p) for p in state.model.parameters()}
    if learned.isdisjoint(id(p) for group_ in state.optimizer.param_groups for p in group_["params"]):
        raise ValueError("state.optimizer holds no parameter of state.model; make it of state.model.parameters().")
    if state.model.W.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"state.model must be of float32 or float64, got {state.model.W.dtype}: state.model.float().")
    objective = as_objective(objective)
    if options.rounds and not objective.persists:
        raise ValueError("rounds of quasi-Newton steps go with persistent chains: grbm.PCD.")
    options.check()
    if options.anneal_step_size and not objective.sampler.has_step_size:
        raise ValueError(f"anneal_step_size goes with the Langevin family, not with {objective.sampler!r}.")
    data = rows_of(data, state.model.W)
    if len(data.shape) != 2 or data.shape[1] != state.model.n_visible:
        is_flat = math.prod(data.shape[1:]) != state.model.n_visible
        hint = "" if is_flat else ": give data.flatten(1)"
        raise ValueError(f"data must be (n, {state.model.n_visible}), got shape {tuple(data.shape)}{hint}.")
    if isinstance(data, Tensor) and not torch.isfinite(data).all():
        raise ValueError("data holds NaN or infinite numbers.")
    if len(data) == 0:
        raise ValueError("data holds no rows.")
    if state.update == 0 and isinstance(data, Tensor):
        _check_scale(state.model, data)
    batch_size = min(options.batch_size, len(data))
    n_blocks = options.n_blocks(batch_size, objective.n_chains)
    left = len(data) % batch_size if options.keep_last else 0
    if left and options.n_blocks(left, objective.n_chains) % group.world_size:
        raise ValueError(f"{group.world_size} processes cannot share the last batch, of {left} rows.")
    if n_blocks % group.world_size:
        raise ValueError(
            f"{group.world_size} processes cannot share {n_blocks} blocks evenly, the most that divide "
            f"{options.blocks}, the {batch_size} rows of a batch and the chains."
        )
    if state.update >= options.n_updates > 0:
        warnings.warn(
            f"Nothing is left to learn: state has made {state.update} updates, and FitOptions(n_updates="
            f"{options.n_updates}) counts these too. Give it a larger n_updates to go on.",
            UserWarning,
            stacklevel=2,
        )
    updates = _fit(state, data, objective, options, batch_size, precision, group)
    return Fitting(updates, max(0, options.n_updates - state.update))


@torch.no_grad()
def _check_scale(model: GRBM, data: Tensor) -> None:
    """Warn where rows lie so far from the model's visible units that it cannot get there."""
    rows = data[:ROWS].to(model.W)
    apart = ((rows - model.mu).square().mean(0) / model.var).sqrt()
    if float(apart.max()) > FAR:
        k = int(apart.argmax())
        warnings.warn(
            f"Column {k} of the data has mean {float(rows[:, k].mean()):.3g} and standard deviation "
            f"{float(rows[:, k].std(correction=0)):.3g}, far from where the model starts; standardise the columns: "
            f"data = (data - data.mean(0)) / data.std(0).",
            ScaleWarning,
            stacklevel=3,
        )


class Fitting(Iterator[StepMetrics]):
    """Iterator of `fit`: an update for each `StepMetrics`; warns where nobody iterated, so that nothing was learned.

    Its length is the number of updates that were left to make, by which progress bars such as ``tqdm(fit(...))`` know
    how far training is.
    """

    def __init__(self, updates: Iterator[StepMetrics], n_updates: int) -> None:
        self._updates, self._n_updates, self._is_idle = updates, n_updates, n_updates > 0

    def __len__(self) -> int:
        return self._n_updates

    def __next__(self) -> StepMetrics:
        self._is_idle = False
        return next(self._updates)

    def __del__(self) -> None:
        if self._is_idle:
            warnings.warn(
                "Nothing was learned: grbm.fit makes an update for each step of an iteration. Write: for metrics in "
                "grbm.fit(...): pass",
                UserWarning,
                stacklevel=2,
            )


def _fit(
    state: TrainState,
    data: Tensor | Rows,
    objective: Objective,
    options: FitOptions,
    batch_size: int,
    precision: Precision,
    group: ProcessGroup,
) -> Iterator[StepMetrics]:
    """`fit` after its checks: rows in a new order each epoch, the learning rate of the update, the update."""
    per_epoch = -(-len(data) // batch_size) if options.keep_last else len(data) // batch_size
    epoch, order = -1, torch.empty(0)
    recorded = None
    if can_record(state, objective, options, group):
        step = partial(_step, state, objective, options, precision, group)
        recorded = Recorded(state, objective, options, group, step)
    while state.update < options.first_round:
        if state.update // per_epoch != epoch:
            epoch = state.update // per_epoch
            order = torch.randperm(len(data), generator=generator(state.seed, "order", epoch))
            order = order.to(_device_of(data))
        first = state.update % per_epoch * batch_size
        batch = order[first : first + batch_size]
        rows = batch[group.part(len(batch))]
        left = cosine(state.update, options.first_round)
        for parameters in state.optimizer.param_groups:
            parameters["lr"] = parameters.setdefault("initial_lr", parameters["lr"]) * left
        now = objective.with_sampler(objective.sampler.rescaled(left)) if options.anneal_step_size else objective
        if options.keep_last and len(batch) != options.batch_size and now.adapts:
            now = now.with_sampler(now.sampler.for_batch(len(batch), options.batch_size))
        if state.update % WEIGH_EVERY == 0:
            _weigh_contrasts(state, data, options.contrast_scales)
        if recorded is not None and now is objective and len(batch) == batch_size:
            yield recorded.update(data, rows)
        else:
            yield train_step(state, now, data[rows], options, precision=precision, group=group)
    native_learning.forget(state.model)
    state.settle()
    while state.update < options.n_updates:
        _weigh_contrasts(state, data, options.contrast_scales)
        yield train_round(state, objective, data, options, group=group)


@torch.no_grad()
def _weigh_contrasts(state: TrainState, data: Tensor | Rows, scales: bool) -> None:
    """Move the weights of the contrasts, where there are some, towards their mean responsibilities for the data.

    And their ``scales`` too, where asked for.
    """
    if state.model.contrasts.n == 1 or state.update == 0:  # a machine that has learned nothing tells nothing
        return
    n = min(ROWS, len(data))
    rows = data[(torch.arange(n) * len(data) // n).to(_device_of(data))]
    for model in (state.model, state.average):
        if model is not None:
            energy = model.freeze()
            slope, free_energy = energy.free_energy_grad if scales else None, engine_for(energy.W).free_energy
            model.contrasts = model.contrasts.followed(rows, partial(free_energy, energy), slope)


def _update_average(state: TrainState, weight: float | Tensor) -> None:
    """θ_avg ← (1 − w) θ_avg + w θ."""
    if state.average is None:
        state.average = copy.deepcopy(state.model)
    if is_deferred(state.model.W):
        weight = number_for(state.model.W, weight)
    for average, parameter in zip(state.average.parameters(), state.model.parameters(), strict=True):
        average.lerp_(parameter, weight)
