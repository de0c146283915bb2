"""Moves of a chain at once from anywhere to anywhere: proposals from a mixture that knows where the data are."""

from dataclasses import dataclass, field

from torch import Tensor

from grbm.core.randomness import Rng
from grbm.model import Energy
from grbm.model.reference import Reference
from grbm.samplers.chains import Chains, Composed, Step, StepInfo, Walk, Walked
from grbm.samplers.collapsed import Boltzmann, anneal, visible_draw
from grbm.samplers.engines import engine_for
from grbm.samplers.engines.definition import Jumping
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.moves import Moves, MoveSampler, moves_of
from grbm.samplers.updates import accept, hidden_update


@dataclass(frozen=True)
class GlobalMoves(Composed):
    """A step: a sweep over hidden units, ``n_moves`` local moves, a proposal v' ~ q, h' ~ p(h | v') (Tierney 1994).

    The sweep has v integrated out (`grbm.samplers.collapsed`). A draw of the `Reference` q is accepted with log A =
    F(v) − F(v') + log q(v) − log q(v'): exact, whatever q is, and as fast as q is near the model.
    Chains cross from cluster to cluster at once, which local moves never do and tempered ones only through their base.

    Parameters
    ----------
    reference : Reference
        q, such as the mixture of Gaussians that fits the data best.
    n_moves : int
        Local moves for each proposal.
    sampler : MoveSampler
        The local moves.
    """

    reference: Reference
    n_moves: int = 5
    sampler: MoveSampler = field(default_factory=Gibbs)

    def __post_init__(self) -> None:
        if self.n_moves < 1:
            raise ValueError(f"n_moves must be at least 1, got {self.n_moves}.")

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """Draws from the reference, (n_chains, N)."""
        return self.reference.to(energy.W).sample(n_chains, rng)

    def bridge(self) -> Reference:
        return self.reference

    def anew(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """Where annealed hidden units are: chains of learning may have missed a mode."""
        return visible_draw(energy, anneal(energy, n_chains, rng).h, rng)

    def moves_and_jumps(self, energy: Energy) -> tuple[Moves, Jumping]:
        """The local moves of a step, and its sweep and jump."""
        hidden = Boltzmann.of(energy)
        jumping = Jumping(self.n_moves, hidden.J, hidden.alone(), self.reference.to(energy.W))
        return moves_of(self.sampler, energy, self.n_moves), jumping

    def at_once(self, energy: Energy, walk: Walk, rng: Rng) -> Walked | None:
        if type(self) is not GlobalMoves:  # which may step otherwise
            return None
        return engine_for(energy.W, rng).run_jumps(energy, *self.moves_and_jumps(energy), walk, rng)

    def bind(self, energy: Energy, n_steps: int) -> Step:
        moves, q = moves_of(self.sampler, energy, self.n_moves), self.reference.to(energy.W)
        hidden = Boltzmann.of(energy)

        def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
            v = visible_draw(energy, hidden.sweep(chains.h, rng), rng)
            chains = engine_for(energy.W, rng).run(energy, moves, Walk(v, self.n_moves), rng).chains
            v = q.sample(len(chains.v), rng)
            logits = energy.hidden_logits(v)
            log_ratio = energy.free_energy(chains.v) - energy.free_energy(v, logits)
            decision = accept(log_ratio + q.log_prob(chains.v) - q.log_prob(v), rng)
            new = (v, *hidden_update(logits, rng=rng))
            return Chains(*map(decision.select, new, chains[:3])), StepInfo(decision.accept_prob)

        return step
