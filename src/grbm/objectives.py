"""What the negative phase averages over: objectives differ in where its chains start, and in nothing else.

Each is ⟨−∂E/∂θ⟩ at the data minus the same under the chains. With ``probabilities`` the hidden units enter by their
probabilities (Alg. 4, the marginal gradient), else by draws (Alg. 3, the joint gradient).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from grbm.model import Energy
from grbm.moments import Moments, MomentSum
from grbm.randomness import Rng, local
from grbm.samplers import AdaptiveSampler, Gibbs, Sampler, run_chains
from grbm.samplers.chains import Swaps
from grbm.samplers.chains import persistent as persistent_of
from grbm.samplers.engines import engine_for
from grbm.samplers.sampling import noise


class Negative(NamedTuple):
    """The negative phase's result: moments, what the next update starts from, and diagnostics."""

    sums: MomentSum
    persistent: Tensor | None
    accept_rate: Tensor | None  # scalar, None where nothing can be rejected
    v: Tensor  # the chains' last visible units (C, N)
    swaps: Swaps | None = None  # where replicas are swapped

    @property
    def moments(self) -> Moments:
        """The means over all states that count."""
        return self.sums.mean()


class Objective(Protocol):
    """Data in, positive and negative moments out. As a dataclass with a field ``sampler`` it lets tempering adapt."""

    @property
    def sampler(self) -> Sampler:
        """What moves the chains of the negative phase."""
        ...

    @property
    def probabilities(self) -> bool:
        """Whether hidden units enter the moments by their probabilities (Alg. 4), not by draws (Alg. 3)."""
        ...

    def negative(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Negative:
        """The negative phase of an update on the batch ``v_data``, where ``persistent`` is what the last one kept."""
        ...


def positive(energy: Energy, v_data: Tensor, rng: Rng, *, probabilities: bool) -> MomentSum:
    """Moments at the data (B, N), h drawn from p(h | v) or kept as its probabilities."""
    sums = run_chains(energy, Gibbs(), v_data, 0, rng, burn_in=-1, probabilities=probabilities).sums
    assert sums is not None
    return sums


class Start(NamedTuple):
    """Where the chains of a negative phase start, and which of their states count."""

    v: Tensor  # ([R,] C, N)
    n_steps: int
    burn_in: int  # first steps that do not count
    keep: bool = False  # the next update goes on from where they end


class Contrastive(ABC):
    """What CD, PCD and modified CD have in common: `start` says where chains start, and all else is the same."""

    sampler: Sampler
    probabilities: bool
    data_draws: bool

    @property
    def data_probabilities(self) -> bool:
        """Whether hidden units enter the moments at the data by their probabilities."""
        return self.probabilities and not self.data_draws

    @abstractmethod
    def start(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Start:
        """Where the chains of an update on the batch ``v_data`` start."""

    def negative(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Negative:
        """The negative phase of an update on the batch ``v_data``, where ``persistent`` is what the last one kept."""
        v, n_steps, burn_in, keep = self.start(energy, v_data, persistent, rng)
        options: Any = {"burn_in": burn_in, "probabilities": self.probabilities}
        walked = run_chains(energy, self.sampler, v, n_steps, rng, **options)
        assert walked.sums is not None
        kept = persistent_of(self.sampler, walked.chains) if keep else None
        return Negative(walked.sums, kept, walked.accept_rate, walked.chains.v, walked.swaps)


@dataclass(frozen=True)
class ModifiedCD(Contrastive):
    """The paper's modified contrastive divergence (Algs. 3, 4): chains start from noise at every update.

    All ``n_steps`` states after ``burn_in`` count (the paper's burn-in is 0). What is learned is the ``n_steps``-step
    chain from noise, and the energy's own density only as far as that chain reaches it.

    Parameters
    ----------
    sampler : Sampler
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

    def __post_init__(self) -> None:
        _check(self.sampler, self.n_steps, self.n_chains)
        if not 0 <= self.burn_in < self.n_steps:
            raise ValueError(f"Need 0 <= burn_in < n_steps, got burn_in={self.burn_in} and n_steps={self.n_steps}.")
        if self.sampler.anneals and self.burn_in != self.n_steps - 1:
            raise ValueError("Only the last state of an annealed path is a draw from the model: burn_in = n_steps - 1.")

    def start(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Start:
        """Chains start from noise at every update."""
        n_chains = local(self.n_chains, rng) if self.n_chains else len(v_data)
        return Start(noise(self.sampler, energy, n_chains, rng), self.n_steps, self.burn_in)


@dataclass(frozen=True)
class CD(Contrastive):
    """Contrastive divergence, CD-k: chains start at the batch, and the state after ``n_steps`` = k steps counts."""

    sampler: Sampler
    n_steps: int = 1
    probabilities: bool = False
    data_draws: bool = False

    def __post_init__(self) -> None:
        _check(self.sampler, self.n_steps)
        _refuse_annealing(self.sampler, "CD")

    def start(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Start:
        """Chains start from the batch at every update, and their last state counts."""
        return Start(v_data, self.n_steps, self.n_steps - 1)


@dataclass(frozen=True)
class PCD(Contrastive):
    """Persistent contrastive divergence: chains go on from where the last update left them; the first start at noise.

    Every state of the ``n_steps`` counts. With `ParallelTempering` as its sampler all replicas persist.

    ``restart`` is the probability that a chain starts again from noise at an update. Chains then have all ages, on
    average 1/restart updates: a hybrid of PCD and modified CD, whose young chains keep open the way from noise and
    whose old ones see the density. Its fixed point is not maximum likelihood, but comes near as restart goes to 0.
    """

    sampler: Sampler
    n_steps: int = 1
    n_chains: int = 100
    probabilities: bool = False
    restart: float = 0.0
    data_draws: bool = False

    def __post_init__(self) -> None:
        _check(self.sampler, self.n_steps, self.n_chains)
        _refuse_annealing(self.sampler, "PCD")
        if not 0 <= self.restart <= 1:
            raise ValueError(f"restart must be a probability, got {self.restart}.")

    def start(self, energy: Energy, v_data: Tensor, persistent: Tensor | None, rng: Rng) -> Start:
        """Chains go on from where they were left, or start from noise where there are none yet."""
        v = persistent
        if v is None or self.restart > 0:
            n_chains = local(self.n_chains, rng)
            fresh_v = noise(self.sampler, energy, n_chains, rng)
            fresh = engine_for(energy.W, rng).draw("uniform", (n_chains, 1), energy.W, rng) < self.restart
            v = fresh_v if v is None else torch.where(fresh, fresh_v[: len(v)], v)  # replicas may have been added since
        return Start(v, self.n_steps, 0, keep=True)


def with_sampler(objective: Objective, sampler: Sampler) -> Objective:
    """The objective with another sampler, such as its own as it has adapted; itself where it is the same."""
    if sampler is objective.sampler:
        return objective
    changed: Any = replace(objective, sampler=sampler)  # type: ignore[type-var]
    return changed


class Adaptation:
    """How the sampler of an objective has adapted so far: what `AdaptiveSampler.adapted` made of it, update by update.

    An objective of one's own that is no dataclass with a field ``sampler`` keeps its sampler as it is.

    Attributes
    ----------
    state_dict : dict of str to Tensor
        What the sampler has adapted, such as a ladder: what a checkpoint keeps.
    """

    def __init__(self, state_dict: dict[str, Tensor] | None = None) -> None:
        self.state_dict = state_dict or {}
        self._made: tuple[Sampler, AdaptiveSampler] | None = None  # from which sampler which, since making is slow

    def applied(self, objective: Objective) -> Objective:
        """The objective with its sampler as it has adapted."""
        sampler = _adaptive(objective)
        if sampler is None:
            return objective
        if self._made is not None and self._made[0] is sampler:
            return with_sampler(objective, self._made[1])
        self._made = sampler, sampler.with_state(self.state_dict)
        return with_sampler(objective, self._made[1])

    def learn(self, objective: Objective, energy: Energy, swap_rate: Tensor | None) -> None:
        """Let the sampler adapt to how often neighbouring replicas swapped in an update, (R − 1,).

        It looks at numbers, so a GPU is waited for.
        """
        original, present = _adaptive(objective), _adaptive(self.applied(objective))
        if original is None or present is None or swap_rate is None:
            return
        adapted = present.adapted(energy, swap_rate)
        self._made = original, adapted
        if adapted is not present:
            self.state_dict = adapted.state_dict()


def _adaptive(objective: Objective) -> AdaptiveSampler | None:
    """The objective's sampler, if it adapts and can be exchanged for one that has."""
    sampler = objective.sampler
    if not isinstance(sampler, AdaptiveSampler) or not is_dataclass(objective):
        return None
    return sampler if any(f.name == "sampler" and f.init for f in fields(objective)) else None


def _check(sampler: Sampler, n_steps: int, n_chains: int | None = None) -> None:
    if not hasattr(sampler, "bind") or isinstance(sampler, type):
        raise TypeError(f"sampler must be an object such as grbm.Gibbs(), got {sampler!r}.")
    for name, number in (("n_steps", n_steps), ("n_chains", n_chains)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")


def _refuse_annealing(sampler: Sampler, name: str) -> None:
    if sampler.anneals:
        raise ValueError(f"{name} cannot use an annealed path, which starts from its own noise; ModifiedCD can.")
