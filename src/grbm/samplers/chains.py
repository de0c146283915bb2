"""What a chain is, what a sampler is, and how to run one step by step."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from grbm.model import Energy
from grbm.ops import hidden_update
from grbm.randomness import Rng, normal

if TYPE_CHECKING:
    from grbm.samplers.moves import Moves


class Chains(NamedTuple):
    """The state of a batch of chains after a step; h was drawn from p(h | v)."""

    v: Tensor  # visible units (C, N)
    h: Tensor  # hidden units (C, M), 0 or 1
    h_prob: Tensor  # p(h = 1 | v) (C, M)
    state: Any = None  # what only this sampler's next step needs; stale once the parameters move


class StepInfo(NamedTuple):
    """What a step tells diagnostics."""

    accept_prob: Tensor | None = None  # per chain; None where nothing can be rejected
    swap_prob: Tensor | None = None  # (R − 1, C): of each pair of neighbouring replicas


class Swaps(NamedTuple):
    """How readily neighbouring replicas swapped."""

    total: Tensor  # (R − 1,) float64: acceptance probabilities in units of 2^-30, so that sums of them are exact
    number: int  # how many went into each

    def rate(self) -> Tensor:
        """Their mean (R − 1,)."""
        return self.total / (self.number * 2**30)


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

    def moves(self, energy: Energy, n_steps: int) -> "Moves | None":
        """The walk as plain moves, which faster implementations can run; None where it is more than that."""
        return None

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """Where chains start from noise: v ~ N(0, I), (n_chains, N)."""
        return normal((n_chains, energy.n_visible), energy.W, rng)

    def start(self, energy: Energy, v: Tensor, rng: Rng) -> Chains:
        """Chains at v with h ~ p(h | v)."""
        return Chains(v, *hidden_update(energy.hidden_logits(v), rng=rng))

    def persistent(self, chains: Chains) -> Tensor:
        """The part that outlives a parameter update and that `start` takes up again: v alone."""
        return chains.v

    def tuned(self, energy: Energy, *, seed: int = 0) -> "Sampler":
        """This sampler with what it can find out about ``energy`` by pilot runs, such as a ladder."""
        return self

    def adapted(self, energy: Energy, swap_rate: Tensor) -> "Sampler":
        """The sampler of the next update, from how often neighbouring replicas swapped in this one, (R − 1,)."""
        return self

    @property
    def memory(self) -> dict[str, Tensor]:
        """What `adapted` has changed since the sampler was made."""
        return {}

    def recalling(self, memory: dict[str, Tensor]) -> "Sampler":
        """The sampler with this `memory`."""
        return self


def walk(
    energy: Energy, sampler: Sampler, chains: Chains, n_steps: int, rng: Rng
) -> Iterator[tuple[int, Chains, StepInfo]]:
    """Run ``n_steps`` steps and yield (t, chains, info) after each, so that the caller decides what to keep."""
    step = sampler.bind(energy, n_steps)
    for t in range(n_steps):
        chains, info = step(chains, t, rng)
        yield t, chains, info
