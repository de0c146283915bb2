"""How a table is learned where nothing is said about it: settings that follow from its size, and a guarded fit.

Coordinates, widths and the reference come from `grbm.data.whitening`; the held-out log-likelihood along the way, in
nats, from `grbm.evaluate.watching`. What is kept is the best model seen, one Gaussian among them.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from grbm.data.splitting import first_of_each, split
from grbm.data.tables import spread
from grbm.data.whitening import Whitened
from grbm.errors import DivergenceError
from grbm.evaluate.watching import Nats, Watch, gaussian_nats, is_gaussian_enough
from grbm.guard import Guard
from grbm.initialise import gaussian_, matched_
from grbm.model import GRBM
from grbm.objectives import PCD
from grbm.options import APART, Recipe
from grbm.randomness import generator
from grbm.samplers import GlobalMoves
from grbm.sgd import PlainSGD
from grbm.training import StepMetrics, TrainState, fit

FEWEST_HELD_OUT = 10
ANCHORS = 4000  # rows that hidden units begin at
HALVINGS = 6  # of the learning rate, before learning gives up
FELL = 1.0  # nats below the best, beyond errors, at which updates are taken back


class Progress(NamedTuple):
    """What a callback is told after every look at the held-out rows."""

    update: int
    n_updates: int
    nats: Nats | None  # held out, in the model's coordinates; None where nothing was held out, or log Z is not known
    best: Nats | None
    state: TrainState
    metrics: StepMetrics


class Learned(NamedTuple):
    """What learning has led to."""

    model: GRBM  # the best on held-out rows, or the last where there are none
    state: TrainState  # where learning could go on
    looks: list[Nats]
    best: Nats | None
    ended: Literal["finished", "early", "stopped"]
    is_gaussian: bool  # whether one Gaussian did better on held-out rows than any machine


def held_out(n_rows: int, share: float, seed: int, same: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Numbers of the rows to learn from, and of those to score: at least ten, but none of fewer than forty.

    Copies, equal in ``same`` (`grbm.data.splitting`), stay together, and one of them is scored for all: as many rows
    would seem to say more than they do.
    """
    order = torch.randperm(n_rows, generator=generator(seed, "validation"))
    n = max(int(share * n_rows), FEWEST_HELD_OUT) if share > 0 and n_rows >= 4 * FEWEST_HELD_OUT else 0
    learned_from, held = split(order, n, same)
    return learned_from, held if same is None else held[first_of_each(same[held])]


def begin(rows: Tensor, whitened: Whitened, recipe: Recipe, seed: int) -> TrainState:
    """The state of training before the first update, for whitened rows (n, N)."""
    some, contrasts = rows[spread(len(rows), ANCHORS)].cpu(), whitened.contrasts  # tables may be sorted
    some = contrasts.removed(some, whitened.base.energy, generator(seed, "contrasts"))
    model = matched_(GRBM(rows.shape[1], recipe.n_hidden), some, n_at_work=recipe.n_at_work, seed=seed)
    model.contrasts = contrasts
    model.to(rows.device)
    return TrainState(model, optimizer(model, recipe), seed=seed)


def optimizer(model: GRBM, recipe: Recipe) -> torch.optim.Optimizer:
    """Plain gradient ascent, slower for log σ²."""
    rest = [p for name, p in model.named_parameters() if name != "log_var"]
    slow = recipe.learning_rate * recipe.variance_rate
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": [model.log_var], "lr": slow}]
    return PlainSGD(groups, lr=recipe.learning_rate)


def objective(whitened: Whitened, recipe: Recipe) -> PCD:
    """Persistent chains that jump to wherever the reference puts its mass."""
    sampler = GlobalMoves(whitened.reference.widened(whitened.base), recipe.n_moves)
    return PCD(sampler, 1, recipe.n_chains, probabilities=True)


def learn(
    state: TrainState,
    rows: Tensor,
    goal: PCD,
    recipe: Recipe,
    *,
    watch: Watch | None = None,
    fallback: Whitened | None = None,
    patience: int | None = None,
    tol: float = 0.0,
    callback: Callable[[Progress], object] = lambda progress: None,
) -> Learned:
    """Learn ``rows`` (n, N), look at held-out ones now and then, and keep the best model seen.

    First by stochastic gradients, which find where clusters are, then by rounds of quasi-Newton steps.

    Parameters
    ----------
    state : TrainState
        From `begin`, or where learning ended before.
    watch : Watch, optional
        With the held-out rows; without, the last model is the result.
    fallback : Whitened, optional
        Whose one Gaussian, at its contrasts, is the result where no look did better.
    patience, tol
        Stop after so many looks in a row that were better than the best before by less than ``tol`` nats; where rounds
        follow, only they are cut short.
    callback
        Called after each look; learning stops when it returns something true.

    Raises
    ------
    DivergenceError
        When numbers leave the finite world, even at 1/64 of the learning rate where a watch tells when to go back.
    """
    first, ended = state.update, "finished"
    looks: list[Nats] = []
    options = recipe.options(first)
    bar, since, good, halvings = -math.inf, 0, _copy(state), 0
    while ended == "finished" and state.update < options.n_updates:
        try:
            for metrics in fit(state, rows, goal, options):
                if not options.is_look(state.update, 1 if watch is None else APART):
                    continue
                nats = None if watch is None else watch.look(state)
                if nats is not None:
                    if not nats.mean > bar - FELL - 5 * nats.error and halvings < HALVINGS:
                        raise _FellError
                    looks.append(nats)
                    since = 0 if nats.mean > bar + tol or options.before_rounds(state.update) else since + 1
                    if nats.mean >= bar:
                        bar, good = nats.mean, _copy(state)
                best = None if watch is None else watch.best
                if callback(Progress(state.update, options.n_updates, nats, best, state, metrics)):
                    ended = "stopped"
                elif (
                    patience is not None
                    and since >= patience
                    and (state.update > options.first_round or not options.rounds)
                ):
                    ended = "early"
                if ended != "finished":
                    break
        except (_FellError, DivergenceError):
            if halvings == HALVINGS or watch is None:
                raise
            halvings += 1
            state = _slower(good, state.update, recipe, halvings)
    if watch is None or watch.best is None:
        return Learned(state.average or state.model, state, looks, None, ended, False)  # type: ignore[arg-type]
    model = watch.best_model()
    is_gaussian = fallback is not None and _is_below(fallback, model, watch, rows)
    if fallback is not None and is_gaussian:
        gaussian_(model, *(x.to(model.W) for x in fallback.base))
        model.contrasts = fallback.contrasts
    return Learned(model, state, looks, watch.best, ended, is_gaussian)  # type: ignore[arg-type]


@torch.no_grad()
def _is_below(fallback: Whitened, model: GRBM, watch: Watch, rows: Tensor) -> bool:
    """Whether one Gaussian is better on the held-out rows, or on all: the few may lack what is rare in the many."""
    assert watch.best is not None
    both = torch.cat([rows[spread(len(rows), ANCHORS)], watch.rows])
    ours = float((-model.free_energy(both)).double().mean()) - watch.best.log_z.log_z
    if ours < gaussian_nats(fallback.base, both, fallback.contrasts):
        return True
    gaussian = fallback.base, fallback.reference, fallback.contrasts
    return is_gaussian_enough(model, watch.best.mean, watch.rows, *gaussian)


class _FellError(Exception):
    """The log-likelihood fell far below what it was."""


def _copy(state: TrainState) -> TrainState:
    """A state that later updates leave alone."""
    return replace(state, model=copy.deepcopy(state.model), average=copy.deepcopy(state.average), guard=Guard())


def _slower(good: TrainState, update: int, recipe: Recipe, halvings: int) -> TrainState:
    """The last good parameters, to be learned on from at a rate that was halved so often."""
    state = replace(_copy(good), update=update, drawn=None)
    state.optimizer = optimizer(state.model, replace(recipe, learning_rate=recipe.learning_rate / 2**halvings))
    return state
