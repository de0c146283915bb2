"""log p of measurements that are intervals: rows of censored units, or rounded, by annealed importance sampling.

p(x) = Z_x/Z, where Z_x is the mass of e^(−E(v, h)) with v in the intervals of x. It is annealed as Z is, from the base
to the model, with every draw of v | h truncated to the intervals: each row has chains and weights of its own.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, generator, seed_of, uniform
from grbm.evaluate.ais import schedule
from grbm.model import GRBM, Base
from grbm.model.censoring import Interval
from grbm.samplers.engines import engine_for
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
    found = list(_annealed(model, within, base, n_steps, n_chains, seed))
    parts = [(start + log_weight.logsumexp(1) - math.log(n_chains), log_weight) for start, log_weight, _ in found]
    log_p, log_weight = (torch.cat(x).cpu() for x in zip(*parts, strict=True))
    n_effective = torch.exp(2 * log_weight.logsumexp(1) - (2 * log_weight).logsumexp(1))
    error = ((n_chains / n_effective - 1).clamp_min(0) / n_chains).sqrt()
    return Annealed(log_p - log_z, error, n_effective)


@torch.no_grad()
def hidden(
    model: GRBM, within: Interval, *, base: Base, n_steps: int = 100, n_chains: int = 8, seed: int = 0
) -> Tensor:
    """Estimate p(h = 1 | v in its intervals), (n, M): the weighted mean over annealed chains, as in `log_prob`."""
    energy, found = model.freeze(), [torch.empty(0, model.n_hidden)]
    for _, log_weight, v in _annealed(model, within, base, n_steps, n_chains, seed):
        h = energy.hidden_logits(v).sigmoid().view(*log_weight.shape, -1)
        found.append((log_weight.softmax(1)[..., None].to(h) * h).sum(1).cpu())
    return torch.cat(found)


@torch.no_grad()
def latent(
    model: GRBM, within: Interval, *, base: Base, n_steps: int = 100, n_chains: int = 8, seed: int = 0
) -> Tensor:
    """Draw v (n, N) in its intervals, given them: of each row's annealed chains one, by its weight."""
    found = [torch.empty(0, model.n_visible)]
    for first, (_, log_weight, v) in enumerate(_annealed(model, within, base, n_steps, n_chains, seed)):
        chosen = torch.multinomial(log_weight.softmax(1).cpu(), 1, generator=generator(seed, "chosen", first))
        rows = torch.arange(len(log_weight)) * n_chains + chosen[:, 0]
        found.append(v[rows.to(v.device)].cpu())
    return torch.cat(found)


def _annealed(
    model: GRBM, within: Interval, base: Base, n_steps: int, n_chains: int, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Some rows at a time: their log-mass under the base (k,), log-weights (k, C), and last states (k C, N)."""
    energy = model.freeze()
    base = Base(base.mean.to(energy.W), base.var.to(energy.W))
    betas, std = schedule(energy, base, n_steps, seed), base.var.sqrt()
    whole = base.log_z(energy.n_hidden)  # of the base without limits
    size = max(1, CHAINS_AT_ONCE // n_chains)
    for first in range(0, len(within.low), size):
        rows = Interval(*(x[first : first + size].to(energy.W) for x in within))
        rng = Blocks(seed_of(seed, "within", first), 1, device=energy.W.device)
        each = Interval(*(x.repeat_interleave(n_chains, 0) for x in rows))
        v = truncated_normal(base.mean.expand_as(each.low), std, each, uniform(each.low.shape, energy.W, rng))
        followed = engine_for(energy.W, rng).anneal(energy, base, betas, v, rng, within=each)
        yield log_mass(base.mean, std, rows).sum(1) + whole, followed.log_weight.view(-1, n_chains), followed.v
