"""Log-density of the known values of rows with gaps, by importance sampling."""

import copy
import math

import torch
from torch import Tensor

from grbm.core.errors import UserError
from grbm.core.randomness import Blocks, normal, seed_of, uniform
from grbm.data.transforms import Transform
from grbm.evaluate.censored import Estimate
from grbm.fitting.impute import NUMBERS, Gain, condition
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
    """Estimate log p(y) of the known values y of rows x (n, N), in nats and in the units of the columns, float64.

    With q the reference, p(y) = q(y) ⟨p(z)/q(z)⟩, z ~ q(z | y), whose estimate is unbiased for p. Each contrast has
    ``n_draws`` of its own. Known values of columns that follow from others are left out.

    Raises
    ------
    UserError
        For a model of which some units alone have contrasts.
    """
    model = copy.deepcopy(model).cpu().double()
    energy, contrasts, A = model.freeze(), model.contrasts.to(model.mu), transform.loadings
    if contrasts.units is not None:
        raise UserError(
            "Rows with gaps have no densities where some units alone have contrasts; fill the gaps first (impute)."
        )
    q, scales = reference.to(energy.mu), contrasts.log_scales.exp()
    y = (x.double() - transform.mean) / transform.scale
    known = (~y.isnan() & transform.kept).double()
    c, y = contrasts.centre.expand(len(A)) @ A, y.nan_to_num()
    found = []
    size = max(1, NUMBERS // (A.shape[1] * (4 * n_draws + len(A) * len(q.weights))))
    for first in range(0, len(x), size):
        rng, some = Blocks(seed_of(seed, "observed", first), 1), slice(first, first + size)
        ys = torch.stack([known[some] * (c + (y[some] - c) / s) for s in scales], 1)  # (n, contrasts, N)
        exact = torch.zeros_like(y[0])
        parts = [condition(m, L @ L.T, A, known[some], exact, ys) for m, L in zip(q.means, q.factors, strict=True)]
        by_contrast = []
        for k in range(len(scales)):
            evidence = torch.stack([part.log_evidence[:, k] for part in parts], 1) + q.weights.log()
            z = _draws(q, A, parts, evidence, known[some], ys[:, k], n_draws, rng)
            flat = z.flatten(0, 1)
            weight = (-energy.free_energy(flat) - q.log_prob(flat)).view(z.shape[:2])
            seen = evidence.logsumexp(1) + contrasts.log_weights[k] - known[some].sum(1) * scales[k].log()
            by_contrast.append(weight + seen[:, None])
        found.append(torch.stack(by_contrast, 1))
    log_w = torch.cat(found)  # (n, contrasts, draws)
    total = log_w.flatten(1).logsumexp(1)
    shares = (log_w - total[:, None, None]).exp()
    error = (n_draws * shares.var(2).sum(1)).sqrt()
    n_effective = 1 / shares.square().flatten(1).sum(1)
    unit = known @ transform.scale.log() + 0.5 * math.log(2 * math.pi) * known.sum(1) + log_z + math.log(n_draws)
    is_empty = known.sum(1) == 0  # of which the density is 1
    return Estimate((total - unit).masked_fill(is_empty, 0.0), error.masked_fill(is_empty, 0.0), n_effective)


def _draws(
    q: Reference, A: Tensor, parts: list[Gain], evidence: Tensor, known: Tensor, y: Tensor, n_draws: int, rng: Blocks
) -> Tensor:
    """Draw z ~ q(z | y), (n, n_draws, K), from the gains of the components and their evidence (n, components)."""
    edges, n, K = evidence.softmax(1).cumsum(1), len(y), len(A)
    u = uniform((n * n_draws, 1), edges, rng).view(n, n_draws)
    component = torch.searchsorted(edges, u).clamp_max(len(parts) - 1)
    noise, z = normal((n * n_draws, K), edges, rng).view(n, n_draws, K), torch.zeros(n, n_draws, K).to(y)
    for j, part in enumerate(parts):
        free = q.means[j] + noise @ q.factors[j].T
        moved = free + (known[:, None] * (y[:, None] - free @ A)) @ part.gain
        z = torch.where((component == j)[:, :, None], moved, z)
    return z
