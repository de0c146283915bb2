"""What a chain is, what a sampler is, and the two ways to run one: `walk` step by step, `sample` in one call."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from grbm.model import GRBM, Energy
from grbm.ops import hidden_update
from grbm.randomness import Rng, generator, normal


class Chains(NamedTuple):
    """The state of a batch of chains after a step; h was drawn from p(h | v)."""

    v: Tensor  # visible units (C, N)
    h: Tensor  # hidden units (C, M), 0 or 1
    h_prob: Tensor  # p(h = 1 | v) (C, M)
    state: Any = None  # what only this sampler's next step needs; stale once the parameters move


class StepInfo(NamedTuple):
    """What a step tells diagnostics."""

    accept_prob: Tensor | None = None  # per chain; None where nothing can be rejected
    swap_rate: Tensor | None = None  # per pair of neighbouring replicas


Step = Callable[[Chains, int, Rng], tuple[Chains, StepInfo]]


class Sampler(Protocol):
    """A Markov transition. `bind` does the work that all steps of a walk share and returns the step function.

    A new sampler needs ``bind``, and ``exact``: does it leave the model's distribution unchanged?
    """

    anneals: ClassVar[bool] = False  # must start from its own noise, and only its last state is a draw from the model

    @property
    def exact(self) -> bool: ...

    def bind(self, energy: Energy, n_steps: int) -> Step:
        """The function ``step(chains, t, rng)`` for t = 0..n_steps−1."""
        ...

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """Where chains start from noise: v ~ N(0, I), (n_chains, N)."""
        return normal((n_chains, energy.n_visible), energy.W, rng)

    def start(self, energy: Energy, v: Tensor, rng: Rng) -> Chains:
        """Chains at v with h ~ p(h | v)."""
        return Chains(v, *hidden_update(energy.hidden_logits(v), rng=rng))

    def persistent(self, chains: Chains) -> Tensor:
        """The part that outlives a parameter update and that `start` takes up again: v alone."""
        return chains.v


def walk(
    energy: Energy, sampler: Sampler, chains: Chains, n_steps: int, rng: Rng
) -> Iterator[tuple[int, Chains, StepInfo]]:
    """Run ``n_steps`` steps and yield (t, chains, info) after each, so that the caller decides what to keep."""
    step = sampler.bind(energy, n_steps)
    for t in range(n_steps):
        chains, info = step(chains, t, rng)
        yield t, chains, info


@torch.no_grad()
def sample(
    model: GRBM | Energy,
    sampler: Sampler,
    *,
    n_steps: int = 100,
    n_chains: int | None = None,
    v0: Tensor | None = None,
    seed: int = 0,
    keep_every: int | None = None,
    burn_in: int = 0,
    mean: bool = False,
) -> Chains:
    """Run chains from noise, or from ``v0``, and return their last state.

    Parameters
    ----------
    model, sampler
        What to sample and how, e.g. ``sample(model, Gibbs(), n_chains=64)``.
    n_steps : int
        Steps of every chain; 0 returns the start.
    n_chains : int, optional
        Number of chains from noise; not with ``v0``.
    v0 : Tensor, optional
        Starting visible units (C, N).
    seed : int
        Equal seeds give equal chains on the same device.
    keep_every : int, optional
        Return every ``keep_every``-th state after ``burn_in`` steps, stacked along a new first axis.
    burn_in : int
        Steps that are never kept.
    mean : bool
        Replace v by its conditional mean μ + W h, as the published program displays samples.

    Returns
    -------
    Chains
        v (C, N), h (C, M), h_prob (C, M); with ``keep_every`` (S, C, ·).

    Raises
    ------
    ValueError
        If not exactly one of ``n_chains`` and ``v0`` is given, or a shape or count is wrong.
    """
    energy = model.freeze() if isinstance(model, GRBM) else model
    rng = generator(seed, "sample", device=energy.W.device)
    if (n_chains is None) == (v0 is None):
        raise ValueError("Give either n_chains (chains start from noise) or v0 (chains start there).")
    if v0 is not None and sampler.anneals:
        raise ValueError("An annealed path starts from its own noise: give n_chains, not v0.")
    if n_steps < 0 or not 0 <= burn_in <= n_steps:
        raise ValueError(f"Need 0 <= burn_in <= n_steps, got burn_in={burn_in} and n_steps={n_steps}.")
    if v0 is None:
        assert n_chains is not None
        v0 = sampler.noise(energy, n_chains, rng)
    elif v0.shape[-1] != energy.n_visible:
        raise ValueError(f"v0 must have {energy.n_visible} columns, got shape {tuple(v0.shape)}.")
    chains = sampler.start(energy, v0.to(energy.W), rng)
    kept = []
    for t, chains, _ in walk(energy, sampler, chains, n_steps, rng):
        if keep_every and t >= burn_in and (t + 1 - burn_in) % keep_every == 0:
            kept.append(_finish(energy, chains, mean))
    if keep_every:
        if not kept:
            raise ValueError(f"keep_every={keep_every} keeps nothing of {n_steps - burn_in} steps after burn-in.")
        return Chains(*(torch.stack(x) for x in list(zip(*kept, strict=True))[:3]))
    return _finish(energy, chains, mean)


def _finish(energy: Energy, chains: Chains, mean: bool) -> Chains:
    return chains._replace(v=energy.visible_mean(chains.h)) if mean else chains
