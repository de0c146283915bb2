"""Imputation of columns that are not the model's units as they are: whitened, of several contrasts, or censored.

In whitened coordinates gaps and noise are of the columns. With x = c + z A and z | h ~ N(m, D), measurements y of some
columns, with noise of variance R, leave z | h, y Gaussian: z = z₀ + G (y − c − z₀ A − e), z₀ ~ N(m, D), e ~ N(0, R),
G = D Aᵀ(A Dᵀ A + R)⁻¹ (Matheron's rule; in rows, as vectors are here). Chains jump between the ways to fill a gap by
draws of the reference under the same measurements: there too log A = F(v) − F(v') + log q(v) − log q(v'), since the
measurements count alike for both. A model of several contrasts (`grbm.model.contrasts`) has chains of unit contrast,
which see the measurements so, and draw k from p(k | x) and with each proposal.
"""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Blocks, normal, seed_of, uniform
from grbm.data.frame import Frame
from grbm.data.transforms import Transform
from grbm.model import GRBM
from grbm.model.censoring import Interval
from grbm.model.reference import Reference
from grbm.samplers import ParallelTempering, walk
from grbm.samplers.conditional import CHUNK, Conditional, Imputed, replicas_of
from grbm.samplers.updates import accept, hidden_update

NUMBERS = 1 << 24  # of the largest tensor
JITTER = 1e-9  # of a standardised variance of 1: columns may be linear functions of one another


class _Gain(NamedTuple):
    """How measurements move a Gaussian z ~ N(mean, covariance), by row."""

    gain: Tensor  # (n, N, K)
    log_evidence: Tensor  # (n, S), log density of what was measured


class _Measured(NamedTuple):
    """Standardised rows y (n, N) with gaps, and what was measured how exactly."""

    y: Tensor
    known: Tensor  # (n, N), 1 or 0
    noise_var: Tensor  # (n, N)

    def condition(self, mean: Tensor, covariance: Tensor, A: Tensor, ys: Tensor) -> _Gain:
        """z ~ N(mean (K,), covariance (K, K)) given measurements as exact as these, any of ys (n, S, N); x = z A."""
        across = covariance @ A  # (K, N): covariance of z and x
        inside = A.T @ across  # (N, N)
        pairs = self.known[:, :, None] * self.known[:, None, :]
        system = pairs * inside + torch.diag_embed(self.known * (self.noise_var + JITTER) + 1 - self.known)
        factor = torch.linalg.cholesky(system)
        right = self.known[:, :, None] * across.T  # (n, N, K)
        gain = torch.cholesky_solve(right, factor)
        left = (self.known[:, None] * (ys - mean @ A)).mT
        squares = torch.linalg.solve_triangular(factor, left, upper=False).square().sum(1)
        log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return _Gain(gain, -0.5 * (squares + log_det[:, None]))

    def correct(self, z: Tensor, x: Tensor, gain: Tensor) -> Tensor:
        """z moved by how far x, what it says of the columns, is from what was measured."""
        return z + torch.einsum("cn,cnk->ck", self.known * (self.y - x), gain)


@torch.no_grad()
def impute_columns(
    model: GRBM,
    scale: Transform,
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
    contrasts = model.contrasts
    alike = contrasts.units is None and not (noise_var > 0).any()
    n_gains = 1 if alike else contrasts.n
    size = max(1, NUMBERS // (n_chains * N * K * (len(reference.weights) + 1) * n_gains))
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
    scale: Transform,
    reference: Reference,
    some: tuple[Tensor, Tensor, Tensor],
    n_steps: int,
    burn_in: int,
    n_chains: int,
    rng: Blocks,
) -> tuple[Tensor, Tensor]:
    model = copy.deepcopy(model).cpu().double()
    energy = model.freeze()
    contrasts = model.contrasts.to(energy.mu)
    scales = contrasts.log_scales.exp()
    q = reference.to(energy.mu)
    A = scale.loadings
    y, known, noise_var = some
    # What a column left out says of the others is what they say of it: it adds nothing where they are known.
    c, y = contrasts.centre.expand(len(A)) @ A, y.nan_to_num()
    if contrasts.units is None:  # chains see what was measured as it is at unit contrast
        ways, at = [A for _ in scales], [_Measured(known * (c + (y - c) / s), known, noise_var / s**2) for s in scales]
    else:  # each contrast has columns of its own: x − c A = (z − c) ways
        ways = [contrasts.stretch(s)[:, None] * A for s in scales]
        at = [_Measured(known * (y - c + contrasts.centre @ way), known, noise_var) for way in ways]
    D = energy.var.diag()
    seen_ys = torch.stack([r.y for r in at], 1)  # (n, contrasts, N)
    is_noisy = bool((noise_var > 0).any())
    groups = [(r, way, seen_ys[:, [k]]) for k, (r, way) in enumerate(zip(at, ways, strict=True))]
    if contrasts.units is None and not is_noisy:  # nothing hangs on contrast but where measurements lie
        groups = [(at[0], A, seen_ys)]
    zero = torch.zeros_like(energy.mu)
    under_model = torch.stack([r.condition(zero, D, way, ys).gain for r, way, ys in groups], 1)
    components = list(zip(q.means, q.factors, strict=True))
    parts = [[r.condition(m, L @ L.T, way, ys) for m, L in components] for r, way, ys in groups]
    evidence = torch.cat([torch.stack([p.log_evidence for p in own], 2) for own in parts], 1) + q.weights.log()
    n_free = _rank(A, known * (noise_var == 0)) + (known * (noise_var > 0)).sum(1)
    wider = n_free[:, None] * contrasts.log_scales if contrasts.units is None else 0.0
    evidence = evidence + (contrasts.log_weights - wider).expand(len(y), -1)[:, :, None]
    edges = evidence.flatten(1).softmax(1).cumsum(1).repeat_interleave(n_chains, 0)  # (chains, contrasts x components)
    gains = torch.stack([torch.stack([p.gain for p in own], 1) for own in parts], 1)
    gains = gains.repeat_interleave(n_chains, 0)  # (chains, contrasts that differ, components, N, K)
    under_model = under_model.repeat_interleave(n_chains, 0)
    rows = [_Measured(*(x.repeat_interleave(n_chains, 0) for x in r)) for r in at]
    ys, noise_stds = torch.stack([r.y for r in rows], 1), torch.stack([r.noise_var.sqrt() for r in rows], 1)
    every, v_shape = torch.arange(len(edges)), (len(edges), len(energy.mu))
    stretches = contrasts.stretch(scales[:, None])  # (contrasts, K), or 1 for each where all units have contrast

    def columns(z: Tensor, k: Tensor) -> Tensor:
        """What chains of contrasts k (chains,) at z say of the columns, in the units of what they see."""
        return z @ A if contrasts.units is None else (stretches[k] * z) @ A

    def seen(k: Tensor) -> tuple[_Measured, Tensor, Tensor]:
        """What was measured, as chains of contrasts k (chains,) see it; the noise's deviation; which gains apply."""
        own, noise_std = k.clamp_max(len(groups) - 1), noise_stds[every, k]
        return _Measured(ys[every, k], rows[0].known, noise_std.square()), noise_std, own

    def propose() -> tuple[Tensor, Tensor]:
        which = (uniform((len(edges), 1), edges, rng) > edges).sum(1).clamp_max(edges.shape[1] - 1)
        k, part = which // len(q.weights), which % len(q.weights)
        z = q.means[part] + torch.einsum("ckl,cl->ck", q.factors[part], normal(v_shape, edges, rng))
        there, noise_std, own = seen(k)
        x = columns(z, k) + noise_std * normal(there.y.shape, edges, rng)
        return there.correct(z, x, gains[every, own, part]), k[:, None]

    v, k = propose()
    W = A[None] if contrasts.units is None else torch.stack(ways)
    left = D - torch.einsum("skl,nslc->nskc", D @ W, under_model)  # (chains, ., K, K): covariance of z given h and y
    inside = torch.einsum("ski,cskl,sli->csi", W, left, W).clamp_min(0)
    widths = scales.square() if contrasts.units is None else torch.ones_like(scales)
    total, squares, width = torch.zeros_like(ys[:, 0]), torch.zeros_like(ys[:, 0]), torch.zeros_like(ys[:, 0])
    for t in range(n_steps):
        seen_now = contrasts.seen(v, scales[k])
        k = contrasts.drawn(seen_now, energy.free_energy, rng)
        v = contrasts.at(seen_now, scales[k])
        there, noise_std, own = seen(k[:, 0])
        gain = under_model[:, 0] if len(groups) == 1 else under_model[every, own]
        h, _ = hidden_update(energy.hidden_logits(v), rng=rng)
        mean = energy.visible_mean(h)
        if t >= burn_in:
            x = contrasts.seen(there.correct(mean, columns(mean, k[:, 0]), gain), scales[k]) @ A
            total += x
            squares += x.square()
            width += widths[k] * inside[every, own]
        z = mean + energy.var.sqrt() * normal(v_shape, v, rng)
        v = there.correct(z, columns(z, k[:, 0]) + noise_std * normal(there.y.shape, v, rng), gain)
        new, new_k = propose()
        log_ratio = energy.free_energy(v) - energy.free_energy(new) + q.log_prob(v) - q.log_prob(new)
        decision = accept(log_ratio, rng)
        v, k = decision.select(new, v), decision.select(new_k, k)
    mean, second, width = (
        x.view(-1, n_chains, x.shape[1]).mean(1) / (n_steps - burn_in) for x in (total, squares, width)
    )
    spread = (second - mean.square()).clamp_min(0) + width
    return mean, spread.sqrt()


def _rank(A: Tensor, exact: Tensor) -> Tensor:
    """How many of the columns of x = z A that are known exactly, by row (n, N), do not follow from the others: (n,)."""
    patterns, which = torch.unique(exact, dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
    ranks: Tensor = torch.linalg.matrix_rank(A * patterns[:, None], rtol=1e-8)[which]
    return ranks


@torch.no_grad()
def impute_censored(
    model: GRBM,
    frame: Frame,
    x: Tensor,
    *,
    n_steps: int = 200,
    burn_in: int = 50,
    n_chains: int = 4,
    n_replicas: int | None = None,
    seed: int = 0,
) -> Imputed:
    """Mean and deviation of the columns x (n, N) of a censored model given those that are not NaN.

    They are of measurements, which stop at the limits. Parameters are those of `grbm.impute`.
    """
    energy, transform, mean, std = model.freeze(), frame.transform, x.clone(), torch.zeros_like(x)
    n_replicas = replicas_of(model) if n_replicas is None else n_replicas
    known, missing = frame.intervals(x), transform.exactly(x).isnan()
    within = Interval(known.low.masked_fill(missing, -torch.inf), known.high.masked_fill(missing, torch.inf))
    for some in torch.split(missing.any(1).nonzero()[:, 0], max(1, CHUNK // n_chains)):
        each = Interval(*(end[some].repeat_interleave(n_chains, 0).to(energy.W) for end in within))
        given = Conditional.of(each)
        sampler = given if n_replicas == 1 else ParallelTempering(frame.base, n_replicas, sampler=given)
        rng = Blocks(seed_of(seed, "impute", int(some[0])), 1, device=energy.W.device)
        total, squares = (torch.zeros(len(some), x.shape[1], dtype=torch.float64) for _ in range(2))
        v = sampler.noise(energy, len(each.low), rng)
        for t, chains, _ in walk(energy, sampler, sampler.start(energy, v, rng), n_steps, rng):
            if t >= burn_in:  # less the mean, so that columns far from 0 keep their digits
                drawn = frame.columns(chains.v.detach().cpu()).view(-1, n_chains, x.shape[1]) - transform.mean
                total += drawn.mean(1)
                squares += drawn.square().mean(1)
        total, squares = total / (n_steps - burn_in), squares / (n_steps - burn_in)
        mean[some], std[some] = total + transform.mean, (squares - total.square()).clamp_min(0).sqrt()
    return Imputed(mean, std)
