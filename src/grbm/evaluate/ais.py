"""log Z by annealed importance sampling, from both ends, with error bars and a verdict (Neal 2001; Grosse et al. 2015).

Chains go from a Gaussian base along E_β = (1 − β) E_0 + β E_1 to the model by Gibbs steps. The mean weight is unbiased
for Z, so its logarithm is on average a lower bound of log Z. Chains that go back from exact samples of the model give
an upper bound in the same way. Where the two agree within their errors, the estimate can be believed; where the chains
forth have missed a mode, they cannot agree. Bennett's acceptance ratio makes one estimate of both.

Both can miss a mode where no data are, since above 20 hidden units the way back starts at the data. Annealed hidden
units with v integrated out (`grbm.samplers.collapsed`) know nothing of the data, and find it.
"""

import copy
import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grbm.core.devices import require_memory
from grbm.core.randomness import Blocks, seed_of
from grbm.evaluate import exact
from grbm.learning.bennett import bennett
from grbm.model import GRBM, Base, Energy, base_for
from grbm.model.censoring import UNCENSORED
from grbm.model.contrasts import UNIT
from grbm.samplers import Gibbs, run_chains
from grbm.samplers.annealing import importance
from grbm.samplers.collapsed import anneal
from grbm.samplers.engines import engine_for
from grbm.samplers.path import PathState

PILOT_STEPS, PILOT_CHAINS = 100, 200
CHECKS, CHECK_STEPS = 256, 200  # annealed hidden states, and their temperatures
LARGEST_CHECKED = 1024  # hidden units, above which they take too long
MISSED = 3.0  # nats that annealed hidden units may find by chance, in at most 5 of 100 cases (Markov's inequality)
SETTLING = 200  # Gibbs steps from the data before chains go back, where exact samples cannot be had


Doubt = Literal["few weights", "wide", "apart", "elsewhere", "one end"]


class LogZ(NamedTuple):
    """log Z in nats, float64, with standard errors."""

    log_z: float  # Bennett's estimate of both ways; the lower one where there is no way back
    error: float
    lower: float  # from the base to the model
    lower_error: float
    upper: float  # from the model to the base; NaN where there was nothing to start it from
    upper_error: float
    ess: tuple[float, float]  # effective share of the chains' weights, forth and back
    n_chains: int  # each way
    doubt: Doubt | None  # why not to rely on it: few chains' weights; errors; ends that differ; mass without data
    elsewhere: float | None = None  # nats that annealed hidden units find beyond `log_z`, where they were asked
    shared: float | None = None  # bridged, not annealed: states that a rung and the next have in common, at the least

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
                return "One end only: without data or exact samples nothing bounds log Z from above"
            case "few weights":
                n = min(self.ess) * self.n_chains
                return f"Not converged: the weights rest on {n:.0f} of {self.n_chains} chains"
            case "wide":
                return f"Not converged: the two ends are known to {error:.2g} nats only"
            case "elsewhere":
                return f"Not converged: annealed hidden units find {self.elsewhere:.3g} nats more, where no data are"
            case "apart":
                return f"Not converged: the two ends lie {gap:.3g} nats apart, with an error of {error:.2g}"
        return f"Converged: the two ends agree ({gap:+.2g} ± {error:.2g} nats)"

    @property
    def verdict(self) -> str:
        """The finding, and what to do where it is a bad one."""
        more = "; more n_steps" + ("" if self.shared is not None else ", or a base nearer to the model")
        advice = {
            None: "",
            "one end": ". A mode may be missing",
            "wide": f"{more} or n_chains",
            "elsewhere": ": the likelihood is too high by so much",
        }.get(self.doubt, more)
        return f"{self.finding}{advice}."


def known(log_z: float, error: float = 0.0) -> LogZ:
    """Make a `LogZ` of a number and its error: exact, or one whose two ends are not told."""
    return LogZ(log_z, error, log_z, error, log_z, error, (1.0, 1.0), 0, None)


@torch.no_grad()
def schedule(energy: Energy, base: Base, n_steps: int, seed: int = 0) -> Tensor:
    """Inverse temperatures 0 = β_0 < ... < β_n = 1, close where the weights change most: equal thermodynamic lengths.

    A pilot run of 200 chains measures the deviation of ∂F/∂β along β = (k/100)²; a tenth of the steps is spread so.
    """
    rng = Blocks(seed_of(seed, "pilot"), 1, device=energy.W.device)
    v = base.sample((PILOT_CHAINS,), rng)
    exactly = energy.to(torch.float64)
    grid = torch.linspace(0, 1, PILOT_STEPS + 1, dtype=torch.float64) ** 2
    speeds = []
    for beta in grid.tolist():
        v = run_chains(energy.temper(torch.tensor(beta), base), Gibbs(), v, 2, rng).chains.v
        speeds.append(PathState(exactly, base, v).slope(beta).std())
    speed = torch.stack(speeds).cpu()
    length = torch.cat([torch.zeros(1).double(), (0.5 * (speed[1:] + speed[:-1]) * grid.diff()).cumsum(0)])
    length = 0.9 * length / length[-1].clamp_min(1e-300) + 0.1 * grid
    wanted = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64) * length[-1]
    right = torch.searchsorted(length, wanted).clamp(1, PILOT_STEPS)
    left, share = right - 1, (wanted - length[right - 1]) / (length[right] - length[right - 1])
    betas = torch.lerp(grid[left], grid[right], share.clamp(0, 1))
    betas[0], betas[-1] = 0.0, 1.0
    return betas


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
    base: Base | None = None,
    n_steps: int = 2000,
    n_chains: int = 1000,
    settling: int = SETTLING,
    seed: int = 0,
) -> LogZ:
    """Estimate log Z from both ends.

    Parameters
    ----------
    model : GRBM
        On any device.
    data : Tensor, optional
        (n, N), what the model learned, standardised as it was. It fits the base, and where hidden states are too many
        to enumerate (more than 20) chains start there, take ``settling`` Gibbs steps and go back: an upper bound as far
        as those chains are samples of the model, all modes included.
    base : Base, optional
        Where β = 0; by default fitted to ``data``, else N(0, I).
    n_steps, n_chains : int
        Temperatures, and chains each way.
    settling : int
        Too few leave chains where the data are and not where the model is: the upper end then lies below the lower one.

    Returns
    -------
    LogZ
        ``converged`` says whether the two ends agree, ``doubt`` why not, and ``verdict`` both in words.
    """
    if n_steps < 1 or n_chains < 2:
        raise ValueError(f"n_steps must be at least 1 and n_chains at least 2, got {n_steps} and {n_chains}.")
    energy = model.freeze()
    device = energy.W.device
    size = 12.0 * n_chains * (energy.n_visible + energy.n_hidden)
    require_memory(size, f"Annealing {n_chains:,} chains", "anneal fewer", device)
    if data is not None:
        if data.ndim != 2 or data.shape[1] != model.n_visible:
            raise ValueError(f"data must be (n, {model.n_visible}), got shape {tuple(data.shape)}.")
        data = model.at_unit_contrast(data.to(energy.W), Blocks(seed_of(seed, "contrasts"), 1, device=device))
    if base is None and data is not None:
        base = Base.fit(data)
    base = base_for(base, energy)
    betas = schedule(energy, base, n_steps, seed)
    rng = Blocks(seed_of(seed, "ais"), 1, device=device)
    start = float(base.log_z(energy.n_hidden))
    engine = engine_for(energy.W, rng)
    forth = engine.anneal(energy, base, betas, base.sample((n_chains,), rng), rng).log_weight
    lower, lower_error, ess = mean_weight(forth)
    lower += start
    if energy.n_hidden <= exact.MAX_HIDDEN:
        machine = copy.deepcopy(model)
        machine.contrasts, machine.censoring = UNIT, UNCENSORED  # which have no part in log Z
        v = exact.sample(machine, n_chains, seed=seed_of(seed, "back"))[0].to(energy.W)
    elif data is not None:
        rows = torch.arange(n_chains, device=device) * len(data) // n_chains
        v = run_chains(energy, Gibbs(), data[rows], settling, rng).chains.v
    else:
        end, nothing = (lower, lower_error), (math.nan, math.nan)
        return LogZ(*end, *end, *nothing, (ess, math.nan), n_chains, "one end")
    back = engine.anneal(energy, base, betas, v, rng, back=True).log_weight
    minus_upper, upper_error, ess_back = mean_weight(-back)
    upper = start - minus_upper
    both, error = bennett(forth, back)
    doubt = doubt_of(upper - lower, math.hypot(lower_error, upper_error), min(ess, ess_back) * n_chains)
    ends, beyond = (lower, lower_error, upper, upper_error), None
    if exact.MAX_HIDDEN < energy.n_hidden <= LARGEST_CHECKED:
        populations = anneal(energy, CHECKS, rng, n_steps=CHECK_STEPS).log_z
        beyond = float(populations.logsumexp(0)) - math.log(len(populations)) - both - start
        doubt = "elsewhere" if doubt is None and beyond > MISSED else doubt
    return LogZ(both + start, error, *ends, (ess, ess_back), n_chains, doubt, beyond)


def doubt_of(gap: float, error: float, n_effective: float) -> Doubt | None:
    """Gravest objection to an estimate, also where something is NaN."""
    if not n_effective >= 20:
        return "few weights"
    if not error <= 0.3:
        return "wide"
    return None if abs(gap) <= 3 * error else "apart"
