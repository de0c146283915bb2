"""Imputation where the machine works in whitened coordinates: gaps and noise are of the columns, not of its units.

With x = c + z A and z | h ~ N(m, D), measurements y of some columns, with noise of variance R, leave z | h, y Gaussian:
z = z₀ + G (y − c − z₀ A − e), z₀ ~ N(m, D), e ~ N(0, R), G = D Aᵀ(A Dᵀ A + R)⁻¹ (Matheron's rule; in rows, as vectors
are here). Chains jump between the ways to fill a gap by draws of the reference under the same measurements: there too
log A = F(v) − F(v') + log q(v) − log q(v'), since what was measured counts alike for both.
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grbm.conditional import Imputed
from grbm.data.standardise import Standardizer
from grbm.model import GRBM
from grbm.randomness import Blocks, normal, seed_of, uniform
from grbm.reference import Reference
from grbm.samplers.updates import accept, hidden_update

NUMBERS = 1 << 24  # of the largest tensor
JITTER = 1e-9  # of a standardised variance of 1: columns may be linear functions of one another


class _Gain(NamedTuple):
    """How measurements move a Gaussian z ~ N(mean, covariance), by row."""

    mean: Tensor  # (K,)
    gain: Tensor  # (n, N, K)
    log_evidence: Tensor  # (n,), log density of what was measured


class _Rows(NamedTuple):
    """Standardised rows y (n, N) with gaps, and what was measured how exactly."""

    y: Tensor
    known: Tensor  # (n, N), 1 or 0
    noise_var: Tensor  # (n, N)

    def condition(self, mean: Tensor, covariance: Tensor, A: Tensor) -> _Gain:
        """z ~ N(mean (K,), covariance (K, K)) given the measurements; x = z A, A (K, N)."""
        across = covariance @ A  # (K, N): covariance of z and x
        inside = A.T @ across  # (N, N)
        pairs = self.known[:, :, None] * self.known[:, None, :]
        system = pairs * inside + torch.diag_embed(self.known * (self.noise_var + JITTER) + 1 - self.known)
        factor = torch.linalg.cholesky(system)
        right = self.known[:, :, None] * across.T  # (n, N, K)
        gain = torch.cholesky_solve(right, factor)
        left = (self.known * (self.y - mean @ A))[:, :, None]
        squares = torch.linalg.solve_triangular(factor, left, upper=False).square().sum((1, 2))
        log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return _Gain(mean, gain, -0.5 * (squares + log_det))

    def correct(self, z: Tensor, x: Tensor, gain: Tensor) -> Tensor:
        """z moved by how far x, what it says of the columns, is from what was measured."""
        return z + torch.einsum("cn,cnk->ck", self.known * (self.y - x), gain)


@torch.no_grad()
def impute(
    model: GRBM,
    scale: Standardizer,
    reference: Reference,
    observed: Tensor,
    noise_var: Any = 0.0,
    *,
    n_steps: int = 200,
    burn_in: int = 50,
    n_chains: int = 4,
    seed: int = 0,
) -> Imputed:
    """Mean and deviation of the columns x (n, N) given measurements of them, NaN where there is none; see above.

    As `grbm.impute`, in the units of the columns. Between Gibbs steps each chain is offered a draw of ``reference``.
    """
    y = (observed.double() - scale.mean) / scale.scale
    noise_var = torch.as_tensor(noise_var).double().expand(y.shape) / scale.scale.square()
    mean, std = observed.double().clone(), torch.zeros_like(y)
    open_rows = (y.isnan() | (noise_var > 0)).any(1).nonzero()[:, 0]
    K, N = model.n_visible, y.shape[1]
    size = max(1, NUMBERS // (n_chains * N * K * (len(reference.weights) + 1)))
    for first in range(0, len(open_rows), size):
        here = open_rows[first : first + size]
        rng = Blocks(seed_of(seed, "impute", first), 1)
        some = y[here], (~y[here].isnan()).double(), noise_var[here]
        found = _rows(model, scale, reference, some, n_steps, burn_in, n_chains, rng)
        mean[here], std[here] = found[0] * scale.scale + scale.mean, found[1] * scale.scale
    exact = ~y.isnan() & (noise_var == 0)
    return Imputed(torch.where(exact, observed.double(), mean), torch.where(exact, 0.0, std))


def _rows(
    model: GRBM,
    scale: Standardizer,
    reference: Reference,
    some: tuple[Tensor, Tensor, Tensor],
    n_steps: int,
    burn_in: int,
    n_chains: int,
    rng: Blocks,
) -> tuple[Tensor, Tensor]:
    energy = copy.deepcopy(model).cpu().double().freeze()
    q = reference.to(energy.mu)
    A = torch.eye(len(energy.mu)).double() if scale.to_x is None else scale.to_x
    y, known, noise_var = some
    # What a column left out says of the others is what they say of it: it adds nothing where they are known.
    rows = _Rows(y.nan_to_num(), known, noise_var)
    D = energy.var.diag()
    under_model = rows.condition(torch.zeros_like(energy.mu), D, A).gain
    parts = [rows.condition(m, L @ L.T, A) for m, L in zip(q.means, q.factors, strict=True)]
    evidence = torch.stack([p.log_evidence for p in parts], 1) + q.weights.log()  # (n, components)
    gains = torch.stack([p.gain for p in parts], 1).repeat_interleave(n_chains, 0)  # (chains, components, N, K)
    edges = evidence.softmax(1).cumsum(1).repeat_interleave(n_chains, 0)
    under_model = under_model.repeat_interleave(n_chains, 0)
    rows = _Rows(*(x.repeat_interleave(n_chains, 0) for x in rows))
    noise_std, every = rows.noise_var.sqrt(), torch.arange(len(rows.y))

    def propose() -> Tensor:
        which = (uniform((len(edges), 1), edges, rng) > edges).sum(1).clamp_max(len(parts) - 1)
        z = q.means[which] + torch.einsum("ckl,cl->ck", q.factors[which], normal(v_shape, edges, rng))
        return rows.correct(z, z @ A + noise_std * normal(rows.y.shape, edges, rng), gains[every, which])

    v_shape = (len(rows.y), len(energy.mu))
    v = propose()
    left = D - torch.einsum("kl,nlc->nkc", D @ A, under_model)  # (chains, K, K): covariance of z given h and y
    inside = torch.einsum("ki,ckl,li->ci", A, left, A).clamp_min(0)
    total, squares = torch.zeros_like(rows.y), torch.zeros_like(rows.y)
    for t in range(n_steps):
        h, _ = hidden_update(energy.hidden_logits(v), rng=rng)
        mean = energy.visible_mean(h)
        if t >= burn_in:
            x = rows.correct(mean, mean @ A, under_model) @ A
            total += x
            squares += x.square()
        z = mean + energy.var.sqrt() * normal(v_shape, v, rng)
        v = rows.correct(z, z @ A + noise_std * normal(rows.y.shape, v, rng), under_model)
        new = propose()
        log_ratio = energy.free_energy(v) - energy.free_energy(new) + q.log_prob(v) - q.log_prob(new)
        v = accept(log_ratio, rng).select(new, v)
    mean, second = (x.view(-1, n_chains, x.shape[1]).mean(1) / (n_steps - burn_in) for x in (total, squares))
    spread = (second - mean.square()).clamp_min(0) + inside[::n_chains]
    return mean, spread.sqrt()
