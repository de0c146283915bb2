"""log Z by annealed importance sampling, from both ends, with error bars and a verdict (Neal 2001; Grosse et al. 2015).

What is annealed are the hidden units with v integrated out, a Boltzmann machine p (`grbm.samplers.collapsed`). Chains
go along q^(1−β) p^β, from independent units q to the machine, a sweep at each β. The mean weight is unbiased for Z, so
its logarithm is on average a lower bound of log Z. Chains that go back from samples of the machine give an upper bound
in the same way. Where the two agree within their errors, the estimate can be believed. Bennett's acceptance ratio makes
one estimate of both.

Up to 20 hidden units chains go back from exact samples. Of more, they go back from where the chains forth have come to,
and both can miss a mode where the data are. So others go both ways between independent units as active as those at the
data, and the data themselves: what these find must not be more.
"""

import copy
import math
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from grbm.core.devices import require_memory
from grbm.core.randomness import Blocks, seed_of, uniform
from grbm.evaluate import exact
from grbm.learning.bennett import bennett
from grbm.model import GRBM, Energy
from grbm.model.censoring import UNCENSORED
from grbm.model.contrasts import UNIT
from grbm.samplers.annealing import importance, systematic
from grbm.samplers.collapsed import Boltzmann, anneal

PILOTS, PILOT_STEPS = 256, 100  # chains whose mean activities q has, and their temperatures
PRIOR = 1 / 64  # the part of a fair coin in these
CHECKS = 256  # chains each way from the data
MISSED = 3.0  # nats that these may find more, by chance
SETTLING = 200  # sweeps before chains go back from where no exact samples are


Doubt = Literal["few weights", "wide", "apart", "missed", "one end"]


class LogZ(NamedTuple):
    """An estimate of log Z in nats, with standard errors; ``float(z)`` is ``z.log_z``.

    Parameters
    ----------
    log_z, error : float
        Bennett's estimate from both ways of annealing, and its standard error.
    lower, lower_error, upper, upper_error : float
        Estimates by one way: from independent units to the machine, and back. On average the first is too low, the
        second too high.
    ess : tuple of float
        Effective share of the chains' weights, forth and back, in (0, 1].
    n_chains : int
        Chains each way.
    doubt : str, optional
        Why not to rely on it: "few weights" (few chains have them all), "wide" (errors), "apart" (the two ways differ),
        "missed" (mass where no chain came), "one end". None if converged; ``verdict`` says it in a sentence.
    at_data : float, optional
        Nats that chains between the data and units as active as there find beyond ``log_z``.
    shared : float, optional
        If bridged, not annealed: states that neighbouring densities have in common, at the least.
    """

    log_z: float
    error: float
    lower: float
    lower_error: float
    upper: float
    upper_error: float
    ess: tuple[float, float]
    n_chains: int
    doubt: Doubt | None
    at_data: float | None = None
    shared: float | None = None

    def __float__(self) -> float:
        return self.log_z

    @property
    def converged(self) -> bool:
        """Whether both ends agree, within errors that are small enough and rest on enough chains to be errors."""
        return self.doubt is None

    @property
    def finding(self) -> str:
        """Whether the two ends agree, in words."""
        gap, error = self.upper - self.lower, math.hypot(self.lower_error, self.upper_error)
        if self.shared is not None:
            states = f"{self.shared:,.0f} states"
            match self.doubt:
                case None:
                    return f"Converged: known to {self.error:.2g} nats, bridged over {states}"
                case "wide":
                    return f"Not converged: known to {self.error:.2g} nats only"
            return f"Not converged: the model and what it is bridged from share {states} only"
        match self.doubt:
            case "one end":
                return "One end only: without data or exact samples a mode that chains miss stays unknown"
            case "few weights":
                n = min(self.ess) * self.n_chains
                return f"Not converged: the weights rest on {n:.0f} of {self.n_chains} chains"
            case "wide":
                return f"Not converged: the two ends are known to {error:.2g} nats only"
            case "missed":
                return f"Not converged: chains from the data find {self.at_data:.3g} nats more"
            case "apart":
                return f"Not converged: the two ends lie {gap:.3g} nats apart, with an error of {error:.2g}"
        return f"Converged: the two ends agree ({gap:+.2g} ± {error:.2g} nats)"

    @property
    def verdict(self) -> str:
        """The finding, and what to do where it is a bad one."""
        advice = {
            None: "",
            "one end": "; give rows of the data as `data`",
            "wide": "; more n_steps or n_chains",
            "missed": ", so likelihoods are too high by so much; more n_steps",
        }.get(self.doubt, "; more n_steps")
        return f"{self.finding}{advice}."


def known(log_z: float, error: float = 0.0) -> LogZ:
    """Make a `LogZ` of a number and its error: exact, or one whose two ends are not told."""
    return LogZ(log_z, error, log_z, error, log_z, error, (1.0, 1.0), 0, None)


def mean_weight(log_weight: Tensor) -> tuple[float, float, float]:
    """The logarithm of the mean of weights, its standard error, and their effective share."""
    n = len(log_weight)
    log_mean, n_effective = (float(x) for x in importance(log_weight))
    ess = n_effective / n
    return log_mean, math.sqrt(max(0.0, 1 / ess - 1) / n), ess


@torch.no_grad()
def log_z(
    model: GRBM,
    data: Tensor | None = None,
    *,
    n_steps: int = 1000,
    n_chains: int = 500,
    seed: int = 0,
) -> LogZ:
    """Estimate log Z from both ends.

    Parameters
    ----------
    model : GRBM
        On any device. A step takes time as the square of its number of hidden units.
    data : Tensor, optional
        (n, N), what the model learned, standardised as it was. Above 20 hidden units, where exact samples cannot be
        had, chains begin there too, which tells where the others miss a mode.
    n_steps, n_chains : int
        Temperatures, and chains each way.

    Returns
    -------
    LogZ
        ``converged`` says whether the two ends agree, ``doubt`` why not, and ``verdict`` both in words.
    """
    if n_steps < 1 or n_chains < 2:
        raise ValueError(f"n_steps must be at least 1 and n_chains at least 2, got {n_steps} and {n_chains}.")
    energy = model.freeze()
    device, M = energy.W.device, energy.n_hidden
    require_memory(24.0 * n_chains * M + 12.0 * M * M, f"Annealing {n_chains:,} chains", "anneal fewer", device)
    if data is not None and (data.ndim != 2 or data.shape[1] != model.n_visible):
        raise ValueError(f"data must be (n, {model.n_visible}), got shape {tuple(data.shape)}.")
    rng = Blocks(seed_of(seed, "ais"), 1, device=device)
    active = anneal(energy, PILOTS, rng, n_steps=PILOT_STEPS).mean()
    path = HiddenPath(energy, torch.lerp(active, torch.full_like(active, 0.5), PRIOR), n_steps, rng)
    forth = path.forth(n_chains)
    if M <= exact.MAX_HIDDEN:
        machine = copy.deepcopy(model)
        machine.contrasts, machine.censoring = UNIT, UNCENSORED  # which have no part in log Z
        h = exact.sample(machine, n_chains, seed=seed_of(seed, "back"))[1].to(energy.W)
    else:
        h = path.settled(forth.h[systematic(forth.log_weight, rng)])
    back = path.back(h)
    both, error = bennett(forth.log_weight, back)
    lower, lower_error, ess = mean_weight(forth.log_weight)
    minus_upper, upper_error, ess_back = mean_weight(-back)
    ends = (path.log_z_0 + lower, lower_error, path.log_z_0 - minus_upper, upper_error)
    doubt = doubt_of(-minus_upper - lower, math.hypot(lower_error, upper_error), min(ess, ess_back) * n_chains)
    found = LogZ(path.log_z_0 + both, error, *ends, (ess, ess_back), n_chains, doubt)
    if M <= exact.MAX_HIDDEN:
        return found
    if data is None:
        return found._replace(doubt=doubt or "one end")
    v = model.at_unit_contrast(data.to(energy.W), rng)
    p = energy.hidden_logits(v).sigmoid()
    path = HiddenPath(energy, torch.lerp(p.mean(0), torch.full_like(p[0], 0.5), PRIOR), n_steps, rng)
    rows = torch.arange(CHECKS, device=device) * len(data) // CHECKS
    h = path.settled((uniform((CHECKS, M), p, rng) < p[rows]).to(p))
    beyond = path.log_z_0 + bennett(path.forth(CHECKS).log_weight, path.back(h))[0] - found.log_z
    return found._replace(at_data=beyond, doubt="missed" if beyond > MISSED else doubt)


class Weighted(NamedTuple):
    """Weights of chains, (C,) float64, in nats, and their hidden units at the end, (C, M)."""

    log_weight: Tensor
    h: Tensor


class HiddenPath:
    """The way q^(1−β) p^β from independent units q, active with the probabilities ``active`` (M,), to the machine."""

    def __init__(self, energy: Energy, active: Tensor, n_steps: int, rng: Blocks) -> None:
        exactly = energy.to(torch.float64)
        self.marginal = Boltzmann(*(x.to(energy.W) for x in Boltzmann.of(exactly)))
        self.active, self.rng = active, rng
        self.start = active.logit()
        self.log_z_0 = float(softplus(self.start.double()).sum() + 0.5 * (2 * math.pi * exactly.var).log().sum())
        self.betas = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64).tolist()

    def forth(self, n_chains: int) -> Weighted:
        """Anneal chains from q to the machine."""
        h = (uniform((n_chains, len(self.active)), self.active, self.rng) < self.active).to(self.active)
        log_weight = h.new_zeros(n_chains, dtype=torch.float64)
        for low, high in pairwise(self.betas):
            log_weight += (high - low) * self._slope(h)
            h = self.marginal.sweep(h, self.rng, high, self.start)
        return Weighted(log_weight, h)

    def back(self, h: Tensor) -> Tensor:
        """Log-weights of the same way (C,), float64, of chains that go back from samples h (C, M) of the machine.

        Sweeps begin at the last unit, as Bennett's ratio asks (Crooks 2000): they undo those of the way forth.
        """
        J, c = self.marginal
        marginal, start = Boltzmann(J.flip(0, 1), c.flip(0)), self.start.flip(0)
        log_weight = h.new_zeros(len(h), dtype=torch.float64)
        for high, low in pairwise(reversed(self.betas)):
            h = marginal.sweep(h.flip(1), self.rng, high, start).flip(1)
            log_weight += (high - low) * self._slope(h)
        return log_weight

    def settled(self, h: Tensor) -> Tensor:
        """h after sweeps at the machine."""
        for _ in range(SETTLING):
            h = self.marginal.sweep(h, self.rng)
        return h

    def _slope(self, h: Tensor) -> Tensor:
        """log p − log q without their normalisers, per sample."""
        return self.marginal.log_mass(h) - (h * self.start).sum(-1, dtype=torch.float64)


def doubt_of(gap: float, error: float, n_effective: float) -> Doubt | None:
    """Gravest objection to an estimate, also where something is NaN."""
    if not n_effective >= 20:
        return "few weights"
    if not error <= 0.3:
        return "wide"
    return None if abs(gap) <= 3 * error else "apart"
