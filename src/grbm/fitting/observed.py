"""The density of what rows with gaps have, of models whose units are linear functions of several columns."""

import copy
import math

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, normal, seed_of, uniform
from grbm.data.transforms import Transform
from grbm.evaluate.censored import Estimate
from grbm.fitting.impute import NUMBERS, condition
from grbm.model import GRBM
from grbm.model.reference import Reference


@torch.no_grad()
def observed_log_prob(
    model: GRBM,
    transform: Transform,
    reference: Reference,
    x: Tensor,
    log_z: float,
    *,
    n_draws: int = 512,
    seed: int = 0,
) -> Estimate:
    """Estimate log p of what rows x (n, N) have, in nats and in the units of the columns, float64.

    With q the reference, p(y) = q(y) ⟨p(z)/q(z)⟩, z ~ q(z | y): importance sampling, whose mean is unbiased for p. Of
    several contrasts, each sees the measurements in its own way.
    """
    model = copy.deepcopy(model).cpu().double()
    energy, contrasts, A = model.freeze(), model.contrasts.to(model.mu), transform.loadings
    q, scales = reference.to(energy.mu), contrasts.log_scales.exp()
    y = (x.double() - transform.mean) / transform.scale
    known = (~y.isnan() & transform.kept).double()
    n_known, c, y = known.sum(1), contrasts.centre.expand(len(A)) @ A, y.nan_to_num()
    ys = torch.stack([known * (c + (y - c) / s) for s in scales], 1)  # (n, contrasts, N)
    found = []
    size = max(1, NUMBERS // (A.numel() * (n_draws + len(q.weights))))
    for first in range(0, len(x), size):
        rng, some = Blocks(seed_of(seed, "observed", first), 1), slice(first, first + size)
        parts = [
            condition(mean, L @ L.T, A, known[some], torch.zeros(len(A.T)).to(y), ys[some])
            for mean, L in zip(q.means, q.factors, strict=True)
        ]
        evidence = torch.stack([part.log_evidence for part in parts], 2) + q.weights.log()  # (n, contrasts, components)
        gains, every = torch.stack([part.gain for part in parts], 1), torch.arange(len(parts[0].gain))
        for k, scale in enumerate(scales):
            edges = evidence[:, k].softmax(1).cumsum(1)
            u = uniform((len(edges) * n_draws, 1), edges, rng).view(len(edges), n_draws)
            part = torch.searchsorted(edges, u).clamp_max(len(parts) - 1)
            noise = normal((part.numel(), len(A)), edges, rng).view(*part.shape, len(A))
            z = q.means[part] + torch.einsum("nskl,nsl->nsk", q.factors[part], noise)
            away = known[some][:, None] * (ys[some, k][:, None] - z @ A)
            z = z + torch.einsum("nsc,nsck->nsk", away, gains[every[:, None], part])
            flat = z.flatten(0, 1)
            weight = -energy.free_energy(flat) - q.log_prob(flat)
            seen = evidence[:, k].logsumexp(1) + contrasts.log_weights[k] - n_known[some] * scale.log()
            found.append(weight.view(part.shape) + seen[:, None])
    n_parts = len(scales)
    log_w = torch.cat([torch.cat(found[i : i + n_parts], 1) for i in range(0, len(found), n_parts)])
    n_effective = torch.exp(2 * log_w.logsumexp(1) - (2 * log_w).logsumexp(1))
    error = ((n_parts * n_draws / n_effective - 1).clamp_min(0) / (n_parts * n_draws)).sqrt()
    unit = known @ transform.scale.log() + 0.5 * math.log(2 * math.pi) * n_known + log_z + math.log(n_draws)
    return Estimate(log_w.logsumexp(1) - unit, error, n_effective)
