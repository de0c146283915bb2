"""Log-density of the known values of rows with gaps, by importance sampling."""

import copy
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.errors import UserError
from grbm.core.randomness import Blocks, normal, seed_of, uniform
from grbm.data.transforms import Transform
from grbm.evaluate.censored import Estimate
from grbm.fitting.impute import NUMBERS, condition
from grbm.model import GRBM
from grbm.model.contrasts import Contrasts
from grbm.model.reference import Reference


class Completed(NamedTuple):
    """Draws z of rows whose known values are y: log p(y) = log Σ exp(offsets − F(z)) − log Z, over a row's draws."""

    z: Tensor  # (n, S, K)
    offsets: Tensor  # (n, S), log q(y) − log q(z) − log S


@torch.no_grad()
def completed(
    contrasts: Contrasts, transform: Transform, reference: Reference, x: Tensor, *, n_draws: int, seed: int = 0
) -> Iterator[Completed]:
    """Complete rows x (n, N), NaN where a value is missing, by ``n_draws`` draws z ~ q(z | y) each, part by part.

    q is the reference at the contrasts. log q(y) is in nats, and in the units of the columns. Known values of columns
    that follow from others are left out.

    Raises
    ------
    UserError
        For contrasts of some units alone.
    """
    if contrasts.units is not None:
        raise UserError(
            "Rows with gaps have no densities where some units alone have contrasts; fill the gaps first (impute)."
        )
    A = transform.loadings
    q, contrasts = reference.to(A), contrasts.to(A)
    y = (x.double() - transform.mean) / transform.scale
    known = (~y.isnan() & transform.kept).double()
    c, y, scales = contrasts.centre.expand(len(A)) @ A, y.nan_to_num(), contrasts.log_scales.exp()
    unit = known @ transform.scale.log() + 0.5 * math.log(2 * math.pi) * known.sum(1)
    size = max(1, NUMBERS // (A.shape[1] * len(A) * (n_draws + len(q.weights))))
    for here in torch.split(torch.arange(len(x)), size):
        rng, has = Blocks(seed_of(seed, "observed", int(here[0])), 1), known[here]
        ys = torch.stack([has * (c + (y[here] - c) / s) for s in scales], 1)  # (n, contrasts, N), at unit contrast
        exact = torch.zeros_like(y[0])
        parts = [condition(m, L @ L.T, A, has, exact, ys) for m, L in zip(q.means, q.factors, strict=True)]
        at = contrasts.log_weights - has.sum(1, keepdim=True) * contrasts.log_scales  # (n, contrasts)
        evidence = torch.stack([part.log_evidence + at for part in parts], 1) + q.weights.log()[:, None]
        evidence = evidence.flatten(1)  # of each component at each contrast
        # One uniform number a row: each way to fill it has its share of the draws, to within one.
        steps = (torch.arange(n_draws) + uniform((len(has), 1), evidence, rng)) / n_draws
        which = torch.searchsorted(evidence.softmax(1).cumsum(1), steps).clamp_max(evidence.shape[1] - 1)
        component, contrast = which // contrasts.n, which % contrasts.n
        noise = normal((len(has) * n_draws, len(A)), evidence, rng).view(len(has), n_draws, -1)
        seen = ys.gather(1, contrast[:, :, None].expand(-1, -1, ys.shape[2]))
        z = torch.zeros_like(noise)
        for j, part in enumerate(parts):
            free = q.means[j] + noise @ q.factors[j].T
            moved = free + (has[:, None] * (seen - free @ A)) @ part.gain
            z = torch.where((component == j)[:, :, None], moved, z)
        z = contrasts.seen(z, scales[contrast][:, :, None])
        log_q = -contrasts.free_energy(z, lambda u: -q.log_prob(u.flatten(0, -2)).view(u.shape[:-1]))
        log_q_y = evidence.logsumexp(1) - unit[here]
        yield Completed(z, log_q_y[:, None] - log_q - math.log(n_draws))


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
    """Estimate log p(y) of the known values y of rows x (n, N), in nats and in the units of the columns, float64.

    p(y) = q(y) ⟨p(z)/q(z)⟩, z ~ q(z | y) (`completed`), whose estimate is unbiased for p.
    """
    model = copy.deepcopy(model).cpu().double()
    parts = completed(model.contrasts, transform, reference, x, n_draws=n_draws, seed=seed)
    log_w = torch.cat([offsets - model.free_energy(z.flatten(0, 1)).view(offsets.shape) for z, offsets in parts])
    total = log_w.logsumexp(1)
    shares = (log_w - total[:, None]).exp()
    error, n_effective = (n_draws * shares.var(1)).sqrt(), 1 / shares.square().sum(1)
    is_empty = ~(~x.isnan() & transform.kept).any(1)  # of which the density is 1
    return Estimate((total - log_z).masked_fill(is_empty, 0.0), error.masked_fill(is_empty, 0.0), n_effective)
