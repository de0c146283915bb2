"""log p of measurements that are intervals: rows of censored units, or rounded, by annealed importance sampling.

p(x) = Z_x/Z, where Z_x is the mass of e^(−E(v, h)) with v in the intervals of x. It is annealed as Z is, from the base
to the model, with every draw of v | h truncated to the intervals: each row has chains and weights of its own.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, seed_of, uniform
from grbm.evaluate.ais import schedule
from grbm.model import GRBM, Base
from grbm.model.censoring import Interval
from grbm.samplers.annealing import importance
from grbm.samplers.path import follow
from grbm.samplers.truncated import log_mass, truncated_normal

CHAINS_AT_ONCE = 2048
FEWEST = 3.0  # Fewest chains that the weights of a row may rest on.


class Annealed(NamedTuple):
    """Estimates of log p of rows (n,), float64. Their mean is at most log p, and comes near it with many chains."""

    log_p: Tensor
    error: Tensor  # standard errors
    n_effective: Tensor  # chains that the weights of each row rest on


@torch.no_grad()
def log_prob(
    model: GRBM, within: Interval, log_z: float, *, base: Base, n_steps: int = 500, n_chains: int = 16, seed: int = 0
) -> Annealed:
    """Estimate log p of intervals of v (n, N), a density where v is known; of a machine with this ``log_z``.

    Parameters
    ----------
    model : GRBM
        Of unit contrast.
    within : Interval
        (n, N) each.
    log_z : float
        Of the machine without limits.
    base : Base
        Where β = 0.
    n_steps, n_chains : int
        Temperatures, and chains for each row.
    """
    energy = model.freeze()
    base = Base(base.mean.to(energy.W), base.var.to(energy.W))
    betas, found = schedule(energy, base, n_steps, seed), []
    std = base.var.sqrt()
    start = base.log_z(energy.n_hidden).cpu()  # of the base without limits
    size = max(1, CHAINS_AT_ONCE // n_chains)
    for first in range(0, len(within.low), size):
        rows = Interval(*(x[first : first + size].to(energy.W) for x in within))
        rng = Blocks(seed_of(seed, "within", first), 1, device=energy.W.device)
        each = Interval(*(x.repeat_interleave(n_chains, 0) for x in rows))
        v = truncated_normal(base.mean.expand_as(each.low), std, each, uniform(each.low.shape, energy.W, rng))
        log_weight = follow(energy, base, betas, v, rng, within=each).log_weight.view(-1, n_chains)
        log_mean, n_effective = (torch.stack(x) for x in zip(*map(importance, log_weight), strict=True))
        found.append((log_mass(base.mean, std, rows).sum(1) + log_mean, n_effective))
    log_p, n_effective = (torch.cat(x).cpu() for x in zip(*found, strict=True))
    error = ((n_chains / n_effective - 1).clamp_min(0) / n_chains).sqrt()
    return Annealed(log_p + start - log_z, error, n_effective)
