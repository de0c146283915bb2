"""log p of measurements that are intervals, such as values at a limit; their hidden units and latent values.

Where all values are known, p is that of the model, and of few hidden units the probability of intervals is enumerated.
Else p(x) = Z_x/Z, where Z_x is the mass of e^(−E(v, h)) with v in the intervals of x. Z_x is estimated by annealed
importance sampling (Neal 2001), with a path for each row from independent units to the model,

    f_β(v, h) = exp(−½ Σ (v − m_β)²/σ² + h·((1 − β) logit p + β (b + Wᵀ v/σ²))),  m_β = (1 − β)(μ + W p) + β μ,

v in the intervals, which is unbiased whatever p is. The closer p is to p(h | x), the less the weights vary. A few
chains that are annealed from the base, as Z is, find it: there v is wide enough to reach modes that are far apart.

Where hidden units are fewer than visible ones densities sum v out, since given h visible units are independent:

    f_β(h) = (p^h (1 − p)^(1 − h))^(1 − β) (e^(b·h + ½ Σ (m² − μ²)/σ²) Π_i P(v_i in its interval | h))^β,  m = μ + W h.

A step then costs N M probabilities in place of N + M draws. The weights of wide rows vary far less, and chains leave a
p that is that of a wrong mode, where those of the other path can agree on a density that is too low by 100 nats.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, generator, seed_of, uniform
from grbm.evaluate import exact
from grbm.model import GRBM, Base, Energy, base_for, softplus
from grbm.model.censoring import Interval
from grbm.samplers.path import PathState
from grbm.samplers.truncated import LogMass, log_mass, truncated_normal
from grbm.samplers.updates import accept, hidden_update

CHAINS_AT_ONCE = 2048
FEWEST = 3.0  # Fewest chains that the weights of a row may rest on.
ENUMERATED = 12  # Most hidden units of which all states are enumerated.
CODED = 500  # Rows of which hidden states are enumerated at a time.
PILOT_STEPS, PILOT_CHAINS = 50, 8  # Temperatures and chains that find p of a row.
COLLAPSED = 40_000  # Most pairs of units of which densities are annealed with v summed out.
MARGIN = 1e-4  # Distance from 0 and 1 of the probabilities where a path begins.


Paths = Callable[[Energy, Interval, Tensor, int, int, Blocks], tuple[Tensor, Tensor, Tensor]]


class Estimate(NamedTuple):
    """log p of rows (n,), float64. The mean of an estimate is at most log p, and comes near it with many chains."""

    log_p: Tensor
    error: Tensor  # standard errors; 0 where exact
    n_effective: Tensor  # chains that the weights of each row rest on; infinite where exact

    @classmethod
    def exact(cls, log_p: Tensor) -> Self:
        """Wrap exact values of log p (n,)."""
        return cls(log_p, torch.zeros_like(log_p), torch.full_like(log_p, torch.inf))


def averaged(estimates: list[Estimate]) -> Estimate:
    """The mean density of several estimates of the same rows, with the error of so few; of one that estimate itself."""
    if len(estimates) == 1:
        return estimates[0]
    log_p, error, n_effective = (torch.stack(part) for part in zip(*estimates, strict=True))
    shares, n = log_p.softmax(0).nan_to_num(0.0), len(estimates)  # NaN: all densities are 0
    error = ((shares * error).square().sum(0) + n * shares.var(0)).sqrt()
    return Estimate(log_p.logsumexp(0) - math.log(n), error, 1 / (shares.square() / n_effective).sum(0))


@dataclass(frozen=True, eq=False)
class IntervalRows:
    """Rows (n, N) of which v lies in intervals, and how they are annealed where values are not known.

    Parameters
    ----------
    model : GRBM
        Of unit contrast where values are not known.
    within : Interval
        (n, N) each.
    base : Base
        Gaussian from which the chains that find p are annealed.
    n_steps, n_chains : int
        Temperatures, and chains for each row.
    n_enumerated : int
        Maximum number of hidden units whose states are enumerated.
    seed : int
    """

    model: GRBM
    within: Interval
    base: Base
    n_steps: int = 100
    n_chains: int = 16
    n_enumerated: int = ENUMERATED
    seed: int = 0

    @torch.no_grad()
    def log_prob(self, log_z: float) -> Estimate:
        """Estimate log p (n,), a density where v is known, by the ``log_z`` of the machine without limits."""
        model, within = self.model, self.within
        if not within.is_open.any():
            exactly = model if model.W.dtype == torch.float64 else copy.deepcopy(model).double()
            return Estimate.exact(exactly.log_prob(within.low.to(exactly.W), log_z).cpu())
        if model.n_hidden <= self.n_enumerated:
            own = exact.log_z(model)  # by which these rows are normalised
            return Estimate.exact(exact.log_prob_within(model, within).cpu() + (own - log_z))
        is_wide = model.n_hidden < model.n_visible and model.n_hidden * model.n_visible <= COLLAPSED
        found = list(self._annealed(_over_hidden if is_wide else _along_paths))
        parts = [(start + log_w.logsumexp(1) - math.log(self.n_chains), log_w) for start, log_w, _ in found]
        log_p, log_weight = (torch.cat(x).cpu() for x in zip(*parts, strict=True))
        n_effective = torch.exp(2 * log_weight.logsumexp(1) - (2 * log_weight).logsumexp(1))
        error = ((self.n_chains / n_effective - 1).clamp_min(0) / self.n_chains).sqrt()
        if is_wide:  # States that no chain began in have this mass at most where the path begins.
            error = error.clamp_min(self.model.n_hidden * MARGIN)
        return Estimate(log_p - log_z, error, n_effective)

    @torch.no_grad()
    def hidden(self) -> Tensor:
        """Estimate p(h = 1 | v in its intervals), (n, M), on the CPU: exact, or a mean over annealed chains."""
        model, within = self.model, self.within
        if not within.is_open.any():
            codes: Tensor = model(within.low.to(model.W))
            return codes.cpu()
        if model.n_hidden <= self.n_enumerated:
            parts = zip(*(torch.split(end, CODED) for end in within), strict=True)
            return torch.cat([exact.hidden_within(model, Interval(*part)) for part in parts]).to(model.W.dtype).cpu()
        energy, found = model.freeze(), [torch.empty(0, model.n_hidden)]
        for _, log_weight, v in self._annealed(_along_paths):
            h = energy.hidden_logits(v).sigmoid().view(*log_weight.shape, -1)
            found.append((log_weight.softmax(1)[..., None].to(h) * h).sum(1).cpu())
        return torch.cat(found)

    @torch.no_grad()
    def latent(self) -> Tensor:
        """Draw v (n, N) in its intervals, given them: of each row's annealed chains one, by its weight."""
        if not self.within.is_open.any():
            return self.within.low.to(self.model.W)
        found = [torch.empty(0, self.model.n_visible)]
        for first, (_, log_weight, v) in enumerate(self._annealed(_along_paths)):
            rng = generator(self.seed, "chosen", first)
            chosen = torch.multinomial(log_weight.softmax(1).cpu(), 1, generator=rng)[:, 0]
            found.append(v.view(*log_weight.shape, -1)[torch.arange(len(chosen)), chosen.to(v.device)].cpu())
        return torch.cat(found)

    def _annealed(self, along: Paths) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield for some rows at a time: log Z_x at β = 0 (k,), log-weights (k, C), and the chains' last v (k C, N)."""
        energy, n_pilots = self.model.freeze(), PILOT_CHAINS
        base = base_for(self.base, energy)
        betas, std = torch.linspace(0, 1, PILOT_STEPS + 1).square(), base.var.sqrt()
        size = max(1, CHAINS_AT_ONCE // max(self.n_chains, n_pilots))
        for first in range(0, len(self.within.low), size):
            rows = Interval(*(end[first : first + size].to(energy.W) for end in self.within))
            rng = Blocks(seed_of(self.seed, "within", first), 1, device=energy.W.device)
            each = Interval(*(end.repeat_interleave(n_pilots, 0) for end in rows))
            v = truncated_normal(base.mean.expand_as(each.low), std, each, uniform(each.low.shape, energy.W, rng))
            log_weight, v = _pilots(energy, base, betas, v, each, rng)
            share = 0.5 * (log_weight.view(-1, n_pilots).softmax(1) + 1 / n_pilots)  # no chain counts alone
            p = energy.hidden_logits(v).sigmoid().view(*share.shape, -1)
            yield along(energy, rows, (share[..., None].to(p) * p).sum(1), self.n_steps, self.n_chains, rng)


def _pilots(
    energy: Energy, base: Base, betas: Tensor, v: Tensor, within: Interval, rng: Blocks
) -> tuple[Tensor, Tensor]:
    """Anneal v (C, N) of ``base`` in intervals to the machine in them by Gibbs steps: log-weights (C,) float64, and v.

    Along E_β = (1 − β) E_0 + β E_1, at each of ``betas`` but the first.
    """
    exactly, log_weight = energy.to(torch.float64), torch.zeros(len(v), dtype=torch.float64, device=v.device)
    for low, high in pairwise(betas.tolist()):
        state, here = PathState(exactly, base, v), energy.temper(torch.tensor(high).to(energy.W), base)
        log_weight += state.free_energy(low) - state.free_energy(high)
        h, _ = hidden_update((high * state.logits).to(v), rng=rng)
        v = truncated_normal(here.visible_mean(h), here.var.sqrt(), within, uniform(v.shape, v, rng))
    return log_weight, v


def _along_paths(
    energy: Energy, rows: Interval, p: Tensor, n_steps: int, n_chains: int, rng: Blocks
) -> tuple[Tensor, Tensor, Tensor]:
    """Anneal ``n_chains`` for each row from its p (k, M), h summed out of weights; returns what `_annealed` yields."""
    std, logits_0 = energy.var.sqrt(), torch.logit(p, MARGIN)
    mean_0 = energy.visible_mean(logits_0.sigmoid())
    start = log_mass(mean_0, std, rows).sum(1) + softplus(logits_0.double()).sum(1)
    start = start + 0.5 * (2 * math.pi * energy.var.double()).log().sum()
    within = Interval(*(end.repeat_interleave(n_chains, 0) for end in rows))
    logits_0, mean_0 = (x.repeat_interleave(n_chains, 0) for x in (logits_0, mean_0))

    def draw(mean: Tensor) -> Tensor:
        return truncated_normal(mean, std, within, uniform(mean.shape, mean, rng))

    def log_f(beta: float, v: Tensor, logits: Tensor) -> Tensor:
        squares = (v - torch.lerp(mean_0, energy.mu, beta)).square() / energy.var
        return softplus(torch.lerp(logits_0, logits, beta)).double().sum(1) - 0.5 * squares.double().sum(1)

    v = draw(mean_0)
    log_weight = torch.zeros_like(v[:, 0], dtype=torch.float64)
    for low, high in pairwise(torch.linspace(0, 1, n_steps + 1).tolist()):
        logits = energy.hidden_logits(v)
        log_weight += log_f(high, v, logits) - log_f(low, v, logits)
        h, _ = hidden_update(torch.lerp(logits_0, logits, high), rng=rng)
        v = draw(torch.lerp(mean_0, energy.visible_mean(h), high))
    return start, log_weight.view(-1, n_chains), v


def _over_hidden(
    energy: Energy, rows: Interval, p: Tensor, n_steps: int, n_chains: int, rng: Blocks
) -> tuple[Tensor, Tensor, Tensor]:
    """Anneal as `_along_paths` with v summed out, in float64: a step offers each hidden unit its other value."""
    W, b, mu, var = energy.W.double(), energy.b.double(), energy.mu.double(), energy.var.double()
    logits = torch.logit(p.double(), MARGIN).repeat_interleave(n_chains, 0)
    within = Interval(*(end.double().repeat_interleave(n_chains, 0) for end in rows))
    log_mass_of = LogMass(var.sqrt(), within)
    linear, pairs = b + W.T @ (mu / var), (W.T / var) @ W  # b·h + ½ Σ (m² − μ²)/σ² = h·linear + ½ h·pairs h

    h = (uniform(logits.shape, logits, rng) < logits.sigmoid()).to(logits)
    mean = mu + h @ W.T
    mass = log_mass_of(mean)
    current = mass + h @ linear + 0.5 * ((h @ pairs) * h).sum(1)
    log_weight = torch.zeros_like(current)
    for low, high in pairwise(torch.linspace(0, 1, n_steps + 1).tolist()):
        log_weight += (high - low) * (current - (h * logits - softplus(logits)).sum(1))
        for j in range(len(b)):
            change = 1 - 2 * h[:, j]
            other = torch.addcmul(mean, change[:, None], W[:, j])
            new = log_mass_of(other)
            gain = new - mass + change * (linear[j] + h @ pairs[:, j]) + 0.5 * pairs[j, j]
            decision = accept(high * gain + (1 - high) * change * logits[:, j], rng)
            moved = change * decision.accepted
            mean = torch.addcmul(mean, moved[:, None], W[:, j])
            mass, current = decision.select(new, mass), current + decision.select(gain, torch.zeros_like(gain))
            h[:, j] += moved
    v = truncated_normal(mean, var.sqrt(), within, uniform(mean.shape, mean, rng)).to(energy.W)
    start = (0.5 * (2 * math.pi * var).log().sum()).expand(len(p))
    return start, log_weight.view(-1, n_chains), v
