"""Objectives, which differ in where the chains of the negative phase start, and in nothing else.

Each is ⟨−∂E/∂θ⟩ at the data minus the same under the chains. With ``probabilities`` the hidden units enter by their
probabilities (Alg. 4, the marginal gradient), else by draws (Alg. 3, the joint gradient).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from grbm.core.randomness import Rng, local
from grbm.model import Energy
from grbm.samplers import Gibbs, Sampler, run_chains
from grbm.samplers.chains import Swaps, Walk
from grbm.samplers.engines import engine_for
from grbm.samplers.moments import Moments, MomentSum
from grbm.samplers.sampling import noise


class Negative(NamedTuple):
    """The negative phase's result: moments, what the next update starts from, and diagnostics."""

    sums: MomentSum | None  # None where a GPU made the gradient without them
    persistent: Tensor | None
    accept_rate: Tensor | None  # scalar, None where nothing can be rejected
    v: Tensor  # the chains' last visible units (C, N)
    swaps: Swaps | None = None  # where replicas are swapped

    @property
    def moments(self) -> Moments:
        """The means over all states that count."""
        if self.sums is None:
            raise ValueError("A GPU makes the gradient without the moments of its chains; make the update on a CPU.")
        return self.sums.mean()


class Objective(ABC):
    """Data in, positive and negative moments out.

    A new objective gives ``sampler``, ``probabilities`` and `negative`; the rest has defaults. As a dataclass with a
    field ``sampler`` it lets tempering adapt.
    """

    sampler: Sampler  # what moves the chains of the negative phase
    probabilities: bool  # hidden units enter the moments by their probabilities (Alg. 4), not by draws (Alg. 3)
    n_chains: int | None = None  # chains of the negative phase; None: as many as rows in a batch
    persists: ClassVar[bool] = False  # chains go on from update to update, so that rounds may follow

    @abstractmethod
    def negative(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Negative:
        """The negative phase of an update on the batch ``v_data``, where ``persistent`` is what the last one kept."""

    @property
    def data_probabilities(self) -> bool:
        """True if hidden units enter the moments at the data by their probabilities."""
        return self.probabilities

    @property
    def adapts(self) -> bool:
        """True if the sampler can be replaced: the objective is a dataclass with a field ``sampler``."""
        return is_dataclass(self) and any(f.name == "sampler" and f.init for f in fields(self))

    def with_sampler(self, sampler: Sampler) -> Self:
        """The objective with another sampler, such as its own as it has adapted; itself where it is the same."""
        changed: Any = self
        return changed if sampler is self.sampler else replace(changed, sampler=sampler)


class _Foreign(Objective):
    """An objective that does not derive from `Objective`, with the defaults of one that does."""

    def __init__(self, own: Any) -> None:
        self.own, self.sampler, self.probabilities = own, own.sampler, own.probabilities

    def negative(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Negative:
        return self.own.negative(energy, v_data, persistent, rng)


def as_objective(objective: Any) -> Objective:
    """An `Objective`; raises TypeError for what is none."""
    if isinstance(objective, Objective):
        return objective
    if not hasattr(objective, "negative") or isinstance(objective, type):
        raise TypeError(f"objective must be an object such as grbm.ModifiedCD(grbm.Gibbs()), got {objective!r}.")
    return _Foreign(objective)


def positive(energy: Energy, v_data: Tensor, rng: Rng, *, probabilities: bool) -> MomentSum:
    """Moments at the data (B, N), h drawn from p(h | v) or kept as its probabilities."""
    sums = run_chains(energy, Gibbs(), v_data, 0, rng, burn_in=-1, probabilities=probabilities).sums
    assert sums is not None
    return sums


class Contrastive(Objective):
    """Base class of CD, PCD and modified CD, which differ in the start of their chains (`start`)."""

    n_steps: int
    data_draws: bool
    takes_annealed: ClassVar[bool] = False  # paths that start from their own noise

    def __post_init__(self) -> None:
        if not hasattr(self.sampler, "bind") or isinstance(self.sampler, type):
            raise TypeError(f"sampler must be an object such as grbm.Gibbs(), got {self.sampler!r}.")
        for name, number in (("n_steps", self.n_steps), ("n_chains", self.n_chains)):
            if number is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}.")
        if self.sampler.anneals and not self.takes_annealed:
            name = type(self).__name__
            raise ValueError(f"{name} cannot use an annealed path, which starts from its own noise; ModifiedCD can.")

    @property
    def data_probabilities(self) -> bool:
        return self.probabilities and not self.data_draws

    @abstractmethod
    def start(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Walk:
        """The walk of the chains in an update on the batch ``v_data``: where it starts, and which states count."""

    def negative(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Negative:
        """The negative phase of an update on the batch ``v_data``, where ``persistent`` is what the last one kept."""
        v, n_steps, burn_in, probabilities, _ = self.start(energy, v_data, persistent, rng)
        walked = run_chains(energy, self.sampler, v, n_steps, rng, burn_in=burn_in, probabilities=probabilities)
        assert walked.sums is not None
        kept = self.sampler.persistent(walked.chains) if self.persists else None
        return Negative(walked.sums, kept, walked.accept_rate, walked.chains.v, walked.swaps)


@dataclass(frozen=True)
class ModifiedCD(Contrastive):
    """The paper's modified contrastive divergence (Algs. 3, 4): chains start from noise at every update.

    All ``n_steps`` states after ``burn_in`` count (the paper's burn-in is 0). What is learned is the ``n_steps``-step
    chain from noise, and the energy's own density only as far as that chain reaches it.

    Parameters
    ----------
    n_steps : int
        The paper's CD steps.
    burn_in : int
        First steps left out of the moments.
    n_chains : int, optional
        By default as many as there are data in the batch.
    probabilities : bool
        The marginal gradient (Alg. 4) in place of the joint one (Alg. 3).
    data_draws : bool
        Hidden units at the data are drawn all the same, as in the published program; also of `CD` and `PCD`.
    """

    sampler: Sampler
    n_steps: int = 100
    burn_in: int = 0
    n_chains: int | None = None
    probabilities: bool = False
    data_draws: bool = False

    takes_annealed = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.burn_in < self.n_steps:
            raise ValueError(f"Need 0 <= burn_in < n_steps, got burn_in={self.burn_in} and n_steps={self.n_steps}.")
        if self.sampler.anneals and self.burn_in != self.n_steps - 1:
            raise ValueError("Only the last state of an annealed path is a draw from the model: burn_in = n_steps - 1.")

    def start(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Walk:
        """Chains start from noise at every update."""
        n_chains = local(self.n_chains, rng) if self.n_chains else len(v_data)
        return Walk(noise(self.sampler, energy, n_chains, rng), self.n_steps, self.burn_in, self.probabilities)


@dataclass(frozen=True)
class CD(Contrastive):
    """Contrastive divergence, CD-k: chains start at the batch, and the state after ``n_steps`` = k steps counts.

    Parameters are those of `ModifiedCD`.
    """

    sampler: Sampler
    n_steps: int = 1
    probabilities: bool = False
    data_draws: bool = False

    def start(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Walk:
        """Chains start from the batch at every update, and their last state counts."""
        return Walk(v_data, self.n_steps, self.n_steps - 1, self.probabilities)


@dataclass(frozen=True)
class PCD(Contrastive):
    """Persistent contrastive divergence: chains go on from where the last update left them; the first start at noise.

    The states after each of the ``n_steps`` count. With `ParallelTempering` as its sampler all replicas persist.

    Parameters
    ----------
    n_steps : int
        Steps of the sampler in an update.
    n_chains : int
        Chains, whatever the size of the batch.
    probabilities, data_draws : bool
        As in `ModifiedCD`.
    restart : float
        Probability that a chain starts again from noise at an update. Chains then have all ages, on average 1/restart
        updates: a hybrid of PCD and modified CD, whose young chains keep open the way from noise and whose old ones see
        the density. Its fixed point is not maximum likelihood, but comes near as restart goes to 0.
    """

    sampler: Sampler
    n_steps: int = 1
    n_chains: int = 100
    probabilities: bool = False
    restart: float = 0.0
    data_draws: bool = False

    persists = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.restart <= 1:
            raise ValueError(f"restart must be a probability, got {self.restart}.")

    def start(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Walk:
        """Chains go on from where they were left, or start from noise where there are none yet."""
        v = persistent
        if v is None or self.restart > 0:
            n_chains = local(self.n_chains, rng)
            fresh_v = noise(self.sampler, energy, n_chains, rng)
            fresh = engine_for(energy.W, rng).draw("uniform", (n_chains, 1), energy.W, rng) < self.restart
            v = fresh_v if v is None else torch.where(fresh, fresh_v[: len(v)], v)  # replicas may have been added since
        return Walk(v, self.n_steps, 0, self.probabilities)


class Adaptation:
    """Adapted sampler of an objective, updated by `Sampler.adapted` after each update.

    An objective of one's own that is no dataclass with a field ``sampler`` keeps its sampler as it is.
    """

    def __init__(self, state_dict: dict[str, Tensor] | None = None) -> None:
        self.state_dict = state_dict or {}  # what it has adapted, such as a ladder: what a checkpoint keeps
        self._made: tuple[Sampler, Sampler] | None = None  # from which sampler which, since making is slow

    def applied(self, objective: Objective) -> Objective:
        """The objective with its sampler as it has adapted."""
        sampler = objective.sampler
        if self._made is None or self._made[0] is not sampler:
            self._made = sampler, sampler.with_state(self.state_dict) if objective.adapts else sampler
        return objective.with_sampler(self._made[1])

    def learn(self, objective: Objective, energy: Energy, swap_rate: Tensor | None) -> None:
        """Let the sampler adapt to how often neighbouring replicas swapped in an update, (R − 1,).

        It looks at numbers, so a GPU is waited for.
        """
        if swap_rate is None or not objective.adapts:
            return
        present = self.applied(objective).sampler
        adapted = present.adapted(energy, swap_rate)
        self._made = objective.sampler, adapted
        if adapted is not present:
            self.state_dict = adapted.state_dict()
