"""Trajectory tempering: replicas are models saved along training, from a Gaussian to the model itself."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, Rng, seed_of
from grbm.model import Base, Energy, base_for
from grbm.samplers.chains import Chains, Composed, Sampler, Step, StepInfo
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.sampling import run_chains
from grbm.samplers.tempering import ParallelTempering, in_order, swap_neighbours
from grbm.samplers.updates import Decision, accept

PILOT_CHAINS, PILOT_STEPS = 64, 200  # of `TrajectoryTempering.tuned`, which looks at the last states alone
FreeEnergy = Callable[[Tensor], Tensor]
PARAMETERS = ("W", "b", "mu", "var")
THINNED = slice(1, None, 2)  # the models that stay, and their replicas


@dataclass(frozen=True)
class TrajectoryTempering(Composed):
    """Parallel trajectory tempering (Béreux et al. 2024, arXiv:2405.15376).

    Replica 0 is the Gaussian base, drawn afresh at each step; then come the saved ``models``, oldest first, and last
    the model that is sampled. Each step swaps the visible units of neighbours, even pairs first, then odd ones, with
    log A = F_r(v_r) − F_r(v_{r+1}) + F_{r+1}(v_{r+1}) − F_{r+1}(v_r), and then moves every replica.
    The returned chains are those of the model; ``state`` holds the visible units of all replicas (R, C, N).

    As a negative phase it needs no models to begin with: it saves one whenever the last pair swaps less often than
    ``save_below``, and the chains of the model go on in both; before there are more than ``most``, every other one
    goes. For a finished model, `tuned` leaves out of many ``models`` those that are not needed. Either way the base is
    fitted anew, to chains of the first model, and where the two swap too rarely all the same, tempered versions of that
    model (`ParallelTempering.tuned`) go between them.

    Parameters
    ----------
    models : tuple of Energy
        Saved along training, oldest first.
    base : Base, optional
        By default N(0, I), which fits standardised data.
    sampler : Sampler
        What moves each replica; exact if it is.
    save_below : float
        Swap rate of neighbours below which another model goes between them.
    most : int
        Models to keep at most, 3 or more.
    """

    models: tuple[Energy, ...] = ()
    base: Base | None = None
    sampler: Sampler = field(default_factory=Gibbs)
    save_below: float = 0.4
    most: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.save_below < 1:
            raise ValueError(f"save_below must be between 0 and 1, got {self.save_below}.")
        if self.most < 3:
            raise ValueError(f"most must be at least 3, got {self.most}.")
        if self.sampler.anneals:
            raise ValueError("The replicas cannot be moved by an annealed path.")

    @property
    def n_replicas(self) -> int:
        """The base, the saved models, and the model that is sampled."""
        return len(self.models) + 2

    def noise(self, energy: Energy, n_chains: int, rng: Rng) -> Tensor:
        """All replicas at the base, (R, C, N)."""
        return base_for(self.base, energy).sample((self.n_replicas, n_chains), rng)

    def start(self, energy: Energy, v: Tensor, rng: Rng) -> Chains:
        """From v (C, N), for every replica, or from each replica's own; a model saved since has those of the last."""
        if v.ndim == 2:
            v = v.expand(self.n_replicas, *v.shape)
        if len(v) > self.n_replicas:  # thinned since
            v = torch.cat([v[:1], v[1:-1][THINNED], v[-1:]])
        missing = self.n_replicas - len(v)
        v = torch.cat([v, *[v[-1:]] * missing])
        return self.sampler.start(energy, v[-1], rng)._replace(state=v)

    def persistent(self, chains: Chains) -> Tensor:
        return chains.state

    def adapted(self, energy: Energy, swap_rate: Tensor) -> "TrajectoryTempering":
        if float(swap_rate[-1]) >= self.save_below:
            return self
        sampler = self if self.models else self.tuned(energy)
        kept = sampler.models if len(sampler.models) < self.most else sampler.models[THINNED]
        return replace(sampler, models=(*kept, energy))

    def state_dict(self) -> dict[str, Tensor]:
        """The parameters of the models, each stacked along a first axis, and the base."""
        if not self.models:
            return {}
        stacked = {name: torch.stack([getattr(model, name) for model in self.models]) for name in PARAMETERS}
        base = base_for(self.base, self.models[0])
        return stacked | {"base_mean": base.mean, "base_var": base.var}

    def with_state(self, state_dict: dict[str, Tensor]) -> "TrajectoryTempering":
        if "W" not in state_dict:
            return self
        models = zip(*(state_dict[name] for name in PARAMETERS), strict=True)
        base = Base(state_dict["base_mean"], state_dict["base_var"])
        return replace(self, models=tuple(Energy(*parameters) for parameters in models), base=base)

    def tuned(self, energy: Energy, *, seed: int = 0) -> "TrajectoryTempering":
        """Leave out the models without which neighbours still swap as often as ``save_below``, by a pilot run."""
        rng = Blocks(seed_of(seed, "trajectory"), 1, device=energy.W.device)
        first = self.models[0] if self.models else energy
        start = base_for(self.base, energy).sample((4 * PILOT_CHAINS,), rng)
        base = Base.fit(run_chains(first, self.sampler, start, PILOT_STEPS, rng).chains.v)
        betas = ParallelTempering(base).tuned(first, seed=seed).betas()[1:-1]  # between the base and the first model
        bridge = (first.temper(beta, base).plain() for beta in betas)
        sampler = replace(self, base=base, models=(*bridge, *self.models))
        start = sampler.noise(energy, PILOT_CHAINS, rng)
        v = sampler.persistent(run_chains(energy, sampler, start, PILOT_STEPS, rng).chains)
        free_energies = sampler._free_energies(energy)
        kept, last = [0], sampler.n_replicas - 1
        while kept[-1] < last:
            here = kept[-1]
            for there in range(last, here, -1):  # the farthest that still swaps
                rate = swap_rate(free_energies[here], free_energies[there], v[here], v[there])
                if there == here + 1 or rate >= self.save_below:
                    kept.append(there)
                    break
        return replace(sampler, models=tuple(sampler.models[k - 1] for k in kept[1:-1]))

    def _free_energies(self, energy: Energy) -> list[FreeEnergy]:
        base = base_for(self.base, energy)
        return [base.energy, *(model.free_energy for model in (*self.models, energy))]

    def bind(self, energy: Energy, n_steps: int) -> Step:
        base = base_for(self.base, energy)
        models = (*(model.at(energy.precision) for model in self.models), energy)
        free_energies = self._free_energies(energy)

        def step(chains: Chains, t: int, rng: Rng) -> tuple[Chains, StepInfo]:
            before: Tensor = chains.state

            def decide(order: Tensor, first: int) -> Decision:
                v = in_order(before, order)
                pairs = range(first, len(v) - 1, 2)
                if not pairs:
                    return Decision(order[:0].bool(), v[:0, :, 0])
                ratios = [swap_log_ratio(free_energies[r], free_energies[r + 1], v[r], v[r + 1]) for r in pairs]
                return accept(torch.stack(ratios), rng)

            order, swap_prob = swap_neighbours(decide, before[..., 0])
            v = in_order(before, order)
            walks = [run_chains(model, self.sampler, x, 1, rng) for model, x in zip(models, v[1:], strict=True)]
            replicas = torch.stack([base.sample((v.shape[1],), rng), *(walked.chains.v for walked in walks)])
            last = walks[-1]
            return last.chains._replace(state=replicas), StepInfo(last.accept_prob, swap_prob)

        return step


def swap_log_ratio(f: FreeEnergy, g: FreeEnergy, a: Tensor, b: Tensor) -> Tensor:
    """log A of swapping a (C, N) of the model with free energy f and b of the one with g, chain by chain: (C,)."""
    both = torch.stack([a, b])
    (f_a, f_b), (g_a, g_b) = f(both), g(both)
    return (f_a - g_a) - (f_b - g_b)


def swap_rate(f: FreeEnergy, g: FreeEnergy, a: Tensor, b: Tensor) -> float:
    """How often states a (C, N) of the model with free energy f and b of the one with g would be swapped."""
    return float(swap_log_ratio(f, g, a, b).clamp_max(0).exp().mean())
