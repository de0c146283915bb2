"""Chains, samplers, and how to run one step by step."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from grbm.core.randomness import Rng, n_blocks, normal
from grbm.model import Base, Energy
from grbm.model.reference import Reference
from grbm.samplers.moments import MomentSum
from grbm.samplers.updates import hidden_update


class Chains(NamedTuple):
    """The state of a batch of chains after a step.

    Parameters
    ----------
    v : Tensor
        Visible units (C, N), or (R, C, N) of replicas.
    h : Tensor
        Hidden units (C, M), 0 or 1, drawn from p(h | v).
    h_prob : Tensor
        p(h = 1 | v), (C, M).
    state : optional
        What only the next step of the same sampler needs, such as all replicas; stale once the parameters change.
    """

    v: Tensor
    h: Tensor
    h_prob: Tensor
    state: Any = None


def top_of(replicas: Chains) -> Chains:
    """The chains at β = 1 of replicas (R, C, ·), with all of them as their state."""
    return Chains(replicas.v[-1], replicas.h[-1], replicas.h_prob[-1], replicas)


class StepInfo(NamedTuple):
    """Diagnostics of a step.

    Parameters
    ----------
    accept_prob : Tensor, optional
        Probability with which the step of each chain was accepted, (..., C); None where nothing can be rejected.
    swap_prob : Tensor, optional
        The same for swaps of each pair of neighbouring replicas, (R − 1, C).
    """

    accept_prob: Tensor | None = None
    swap_prob: Tensor | None = None


class Swaps(NamedTuple):
    """How readily neighbouring replicas swapped."""

    n_accepted: Tensor  # (R − 1,) float64: expected numbers, in units of 2^-30 so that sums of them are exact
    n_proposed: int  # of each pair

    def rate(self) -> Tensor:
        """The acceptance rate of each pair (R − 1,)."""
        return self.n_accepted / (self.n_proposed * 2**30)


class Walk(NamedTuple):
    """A walk to be made: what every engine is asked for.

    The states after the first ``burn_in`` steps are summed, from the start on with −1, none with None; with
    ``probabilities`` p(h | v) is summed in place of h.
    """

    v: Tensor  # where it begins ([R,] C, N)
    n_steps: int
    burn_in: int | None = None
    probabilities: bool = False
    given: Chains | None = None  # chains at v that go on; without them h ~ p(h | v) is drawn first


class Walked(NamedTuple):
    """Result of a walk: its last state, and what was gathered on the way."""

    chains: Chains
    sums: MomentSum | None  # of the states that count
    accept_prob: Tensor | None = None  # (..., C), mean over steps; None where nothing can be rejected
    accept_rate: Tensor | None = None  # (...,), mean over chains and steps
    swaps: Swaps | None = None  # where replicas are swapped


class Ladder(NamedTuple):
    """Inverse temperatures of replicas, and the base where log Z is known."""

    base: Base | None  # N(0, I) where it is None
    betas: Tensor  # (R,), from 0 to 1


Step = Callable[[Chains, int, Rng], tuple[Chains, StepInfo]]


def start_chains(energy: Energy, v: Tensor, rng: Rng) -> Chains:
    """Chains at v with h ~ p(h | v)."""
    return Chains(v, *hidden_update(energy.hidden_logits(v), rng=rng))


class Sampler(Protocol):
    """A Markov transition. `bind` does the work that all steps of a walk share and returns the step function.

    A new sampler derives from this class and gives ``bind``, and ``exact``: does it leave the model's distribution
    unchanged? One that is nothing but moves of v given h is a `grbm.samplers.moves.MoveSampler`, which every engine
    runs. All other members have defaults; one of several replicas gives `persistent` too. A sampler is immutable:
    `adapted` and its like return another.
    """

    anneals: ClassVar[bool] = False  # must start from its own noise, and only its last state is a draw from the model
    has_step_size: ClassVar[bool] = False  # which `rescaled` shortens

    @property
    def conditions(self) -> bool:
        """True if the sampler conditions visible units on measurements."""
        return False

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether a step leaves the model's distribution unchanged."""

    @abstractmethod
    def bind(self, energy: Energy, n_steps: int) -> Step:
        """The function ``step(chains, t, rng)`` for t = 0..n_steps−1, which returns `Chains` and a `StepInfo`.

        The states ``chains.v`` are (C, N), and t is the number of the step, on which a step size may depend.
        `grbm.core.randomness.normal` and `uniform` draw numbers from ``rng``.
        What it leaves in ``chains.state`` is its own: a sampler that lets several others step in turn hands each
        ``chains._replace(state=None)``, or the state that this one left.
        """

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """Where chains start from noise: v ~ N(0, I), (n_chains, N).

        Who starts chains asks `grbm.samplers.sampling.noise`, which draws this one natively where it can.
        """
        return normal((n_chains, energy.n_visible), energy.W, rng)

    def start(self, energy: Energy, v: Tensor, rng: Rng) -> Chains:
        """Chains at v with h ~ p(h | v)."""
        return start_chains(energy, v, rng)

    def at_once(self, energy: Energy, walk: Walk, rng: Rng) -> Walked | None:
        """The whole walk in one call, where an engine can; otherwise None.

        It is the same law as step by step, and with `grbm.core.randomness.Philox` the same numbers.
        """
        return None

    def persistent(self, chains: Chains) -> Tensor:
        """The visible units ([R,] C, N) of all replicas, which outlive a parameter update: `start` takes them up."""
        return chains.v

    def bridge(self) -> Reference | Ladder | None:
        """Bridge from a known log Z to the model's: a density that chains jump by, or a ladder; None for none."""
        return None

    def anew(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor | None:
        """Chains of a standing model (n_chains, N) that owe nothing to those of learning; None where these go on."""
        return None

    def overshoot(self, energy: Energy) -> Tensor | None:
        """Step size relative to the variance of each visible unit (N,): chains diverge above 2. None without steps."""
        return None

    def rescaled(self, share: float) -> Self:
        """This sampler with a ``share`` of its step size, where it has one."""
        return self

    def for_batch(self, size: int, usual: int) -> Self:
        """The sampler for a batch of ``size`` rows, where it depends on their number, ``usual`` in other batches."""
        return self

    def tuned(self, energy: Energy, *, seed: int = 0) -> Self:
        """This sampler with what it can find out about ``energy`` by pilot runs, such as a ladder."""
        return self

    def adapted(self, energy: Energy, swap_rate: Tensor) -> Self:
        """The sampler of the next update, from how often neighbouring replicas swapped in this one, (R − 1,)."""
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that `adapted` has changed since the sampler was made."""
        return {}

    def with_state(self, state_dict: dict[str, Tensor]) -> Self:
        """The sampler as it had adapted when `state_dict` was taken."""
        return self


class Composed(Sampler):
    """A sampler whose chains another one moves, ``sampler``: it leaves unchanged, and is given, what that one is."""

    sampler: Sampler

    @property
    def exact(self) -> bool:
        """Whether the sampler that moves the chains is."""
        return self.sampler.exact

    @property
    def conditions(self) -> bool:
        return self.sampler.conditions


def walk(
    energy: Energy, sampler: Sampler, chains: Chains, n_steps: int, rng: Rng
) -> Iterator[tuple[int, Chains, StepInfo]]:
    """Run ``n_steps`` steps and yield (t, chains, info) after each, so that the caller decides what to keep."""
    step = sampler.bind(energy, n_steps)
    for t in range(n_steps):
        chains, info = step(chains, t, rng)
        yield t, chains, info


def gather(energy: Energy, step: Step, chains: Chains, walk: Walk, rng: Rng) -> Walked:
    """Take the steps of ``walk`` one by one from ``chains``, and gather what it asks for: the definition of a walk."""
    burn_in = walk.burn_in
    sums = None if burn_in is None else MomentSum.empty(energy, n_blocks(rng))
    total: Tensor | None = None  # of the acceptance probability, by chain
    rates, n_accepted = [], []  # of each step
    for t in range(-1, walk.n_steps):
        if t >= 0:
            chains, info = step(chains, t, rng)
            if (prob := info.accept_prob) is not None:
                total = prob if total is None else total + prob
                rates.append(prob.mean(-1))
            if info.swap_prob is not None:
                n_accepted.append((info.swap_prob.double() * 2**30).round().sum(-1))
        if sums is not None and burn_in is not None and t >= burn_in:
            sums.add(chains.v, chains.h_prob if walk.probabilities else chains.h)
    swaps = Swaps(torch.stack(n_accepted).sum(0), len(n_accepted) * len(chains.v)) if n_accepted else None
    if total is None:
        return Walked(chains, sums, swaps=swaps)
    return Walked(chains, sums, total / len(rates), torch.stack(rates).mean(0), swaps)
