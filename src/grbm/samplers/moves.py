"""Moves of v given h as data: v' = m + shrink (v − m) + noise_std ξ with m = μ + W h.

Each sampler that is nothing but moves says in its own file what they are. `move_step` is what they mean: the definition
that the engines reproduce.
"""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Rng, normal
from grbm.model import Energy
from grbm.model.energy import softplus
from grbm.samplers.chains import Chains, Sampler, Step, StepInfo
from grbm.samplers.updates import accept, hidden_update, visible_update


class Moves(NamedTuple):
    """Per-unit coefficients (T, ..., N) of the moves of a walk, one for each of T steps or one for all.

    With ``mean_field`` the hidden units drive v by their probabilities. From step ``adjust_from`` on each move is
    accepted or rejected at ``temperature`` T: exp(−F(v)/T) p(h | v) or, ``joint``, exp(−E/T) is its target.
    """

    shrink: Tensor
    noise_std: Tensor
    mean_field: bool = False
    adjust_from: int | None = None
    temperature: float = 1.0
    joint: bool = False

    @property
    def is_plain(self) -> bool:
        """True if moves use drawn h and are never rejected."""
        return self.adjust_from is None and not self.mean_field

    def part(self, first: int, last: int) -> "Moves":
        """The moves of steps first..last−1."""
        adjust_from = None if self.adjust_from is None else max(0, self.adjust_from - first)
        if len(self.shrink) == 1:
            return self._replace(adjust_from=adjust_from)
        here = slice(first, max(last, first + 1))  # a walk of no steps has moves all the same
        return self._replace(shrink=self.shrink[here], noise_std=self.noise_std[here], adjust_from=adjust_from)


class _Kept(NamedTuple):
    """The state of an adjusted walk: what the next step would compute again."""

    owner: object
    mean: Tensor  # m at the present state
    free_energy: Tensor
    log_p: Tensor  # log p(h | v), where the test is joint


def move_step(energy: Energy, moves: Moves) -> Step:
    """Move v, then draw h' ~ p(h | v'); from step ``adjust_from`` on, accept or reject the pair (Eq. 12).

    The hidden terms of Eq. 12 cancel because E(v, h) = F(v) − log p(h | v) and h' is drawn from p(h | v'):
    log A = (F(v) − F(v'))/T + log q(v | v', h') − log q(v' | v, h), where both q share the covariance noise_std².
    For Langevin, whose q does not depend on h, this is the Metropolis-adjusted algorithm. Where the joint energy is
    divided by T they do not cancel, and (1 − 1/T) (log p(h | v) − log p(h' | v')) is added.
    """
    T, joint = moves.temperature, moves.joint

    owner = object()  # of what is kept from one step to the next: no other walk's is taken up

    def drive(h: Tensor, h_prob: Tensor) -> Tensor:
        return energy.visible_mean(h_prob if moves.mean_field else h)

    def log_p(h: Tensor, logits: Tensor) -> Tensor:
        """log p(h | v), where it is asked for."""
        return (h * logits - softplus(logits)).sum(-1) if joint else h.new_zeros(h.shape[:-1])

    def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
        shrink, noise_std = (x[t if len(x) > 1 else 0] for x in (moves.shrink, moves.noise_std))
        kept = chains.state if isinstance(chains.state, _Kept) and chains.state.owner is owner else None
        mean = drive(chains.h, chains.h_prob) if kept is None else kept.mean
        noise = normal(chains.v.shape, chains.v, rng)
        v = visible_update(chains.v, mean, shrink, noise_std, noise)
        logits = energy.hidden_logits(v)
        h, h_prob = hidden_update(logits, rng=rng)
        if moves.adjust_from is None or t < moves.adjust_from:
            return Chains(v, h, h_prob), StepInfo()
        if kept is None:
            old_logits = energy.hidden_logits(chains.v)
            kept = _Kept(owner, mean, energy.free_energy(chains.v, old_logits), log_p(chains.h, old_logits))
        moved = _Kept(owner, drive(h, h_prob), energy.free_energy(v, logits), log_p(h, logits))
        way_back = (chains.v - torch.lerp(moved.mean, v, shrink)) / noise_std
        log_ratio = (kept.free_energy - moved.free_energy) / T + 0.5 * (noise.square() - way_back.square()).sum(-1)
        if joint:
            log_ratio = log_ratio + (1 - 1 / T) * (kept.log_p - moved.log_p)
        decision = accept(log_ratio, rng)
        kept = _Kept(owner, *(decision.select(a, b) for a, b in zip(moved[1:], kept[1:], strict=True)))
        new, old = (v, h, h_prob), (chains.v, chains.h, chains.h_prob)
        selected = (decision.select(a, b) for a, b in zip(new, old, strict=True))
        return Chains(*selected)._replace(state=kept), StepInfo(decision.accept_prob)

    return step


class MoveSampler(Sampler):
    """A sampler that is nothing but moves: give ``exact`` and ``moves``, and every engine can run it.

    Its chains start with h ~ p(h | v) in every engine, whatever ``start`` is.
    """

    @abstractmethod
    def moves(self, energy: Energy, n_steps: int) -> Moves:
        """The moves of a walk of ``n_steps`` >= 1 steps, the same each time: what is random belongs into `bind`."""

    def bind(self, energy: Energy, n_steps: int) -> Step:
        """`move_step` of these moves."""
        return move_step(energy, moves_of(self, energy, n_steps))


def moves_of(sampler: MoveSampler, energy: Energy, n_steps: int) -> Moves:
    """The sampler's moves; raises ValueError for what no engine can run."""
    moves = sampler.moves(energy, max(1, n_steps))
    wanted = f"(T, ..., {energy.n_visible}) of type {energy.var.dtype}"
    for name in ("shrink", "noise_std"):
        x = getattr(moves, name)
        if not isinstance(x, Tensor) or x.ndim < 2 or x.shape[-1] != energy.n_visible or x.dtype != energy.var.dtype:
            found = f"{tuple(x.shape)}, {x.dtype}" if isinstance(x, Tensor) else repr(x)
            raise ValueError(f"{type(sampler).__name__}: {name} of Moves must be a tensor {wanted}, got {found}.")
        if len(x) not in (1, max(1, n_steps)):
            raise ValueError(
                f"{type(sampler).__name__}: a walk of {n_steps} steps needs as many moves or one for all, got {len(x)} "
                f"in {name}."
            )
    return moves
