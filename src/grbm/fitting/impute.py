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

from grbm.core.randomness import Blocks, normal, uniform
from grbm.data.frame import Frame
from grbm.data.transforms import Transform
from grbm.model import GRBM
from grbm.model.censoring import Interval
from grbm.model.reference import Reference
from grbm.samplers import Chains
from grbm.samplers.conditional import CHUNK, Conditional, Filled, Filling
from grbm.samplers.updates import accept, hidden_update

NUMBERS = 1 << 24  # of the largest tensor
JITTER = 1e-9  # of a standardised variance of 1: columns may be linear functions of one another


class Gain(NamedTuple):
    """How measurements move a Gaussian z ~ N(mean, covariance), by row."""

    gain: Tensor  # (n, N, K)
    log_evidence: Tensor  # (n, S), log density of what was measured


def condition(mean: Tensor, covariance: Tensor, A: Tensor, known: Tensor, noise_var: Tensor, ys: Tensor) -> Gain:
    """z ~ N(mean (K,), covariance (K, K)) given noisy x = z A where ``known`` (n, N) is 1: any of ys (n, S, N)."""
    across = covariance @ A  # (K, N): covariance of z and x
    inside = A.T @ across  # (N, N)
    system = known[:, :, None] * known[:, None, :] * inside
    factor = torch.linalg.cholesky(system + torch.diag_embed(known * (noise_var + JITTER) + 1 - known))
    gain = torch.cholesky_solve(known[:, :, None] * across.T, factor)
    left = (known[:, None] * (ys - mean @ A)).mT
    squares = torch.linalg.solve_triangular(factor, left, upper=False).square().sum(1)
    log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return Gain(gain, -0.5 * (squares + log_det[:, None]))


@torch.no_grad()
def impute_columns(
    model: GRBM,
    scale: Transform,
    reference: Reference,
    observed: Tensor,
    noise_var: Any = 0.0,
    filling: Filling = Filling(),
) -> Filled:
    """Fill columns x (n, N) given measurements of them, NaN where there is none; see above.

    As `grbm.impute`, in the units of the columns. Between Gibbs steps each chain is offered a draw of ``reference``.
    """
    y = (observed.double() - scale.mean) / scale.scale
    noise_var = torch.as_tensor(noise_var).double().expand(y.shape) / scale.scale.square()
    mean, std, draws = observed.double().clone(), torch.zeros_like(y), filling.new_draws(observed.double())
    K, N = model.n_visible, y.shape[1]
    contrasts = model.contrasts
    alike = contrasts.units is None and not (noise_var > 0).any()
    n_gains = 1 if alike else contrasts.n
    size = NUMBERS // (filling.n_chains * N * K * (len(reference.weights) + 1) * n_gains)
    for here, rng in filling.parts((y.isnan() | (noise_var > 0)).any(1), size):
        some = y[here], (~y[here].isnan()).double(), noise_var[here]
        found = _rows(model, scale, reference, some, filling, rng)
        mean[here], std[here] = found.mean * scale.scale + scale.mean, found.std * scale.scale
        if filling.keep_draws:
            draws[here] = found.draws * scale.scale + scale.mean
    exact = ~y.isnan() & (noise_var == 0)
    return Filled(torch.where(exact, observed.double(), mean), torch.where(exact, 0.0, std), draws)


def _rows(
    model: GRBM,
    scale: Transform,
    reference: Reference,
    some: tuple[Tensor, Tensor, Tensor],
    filling: Filling,
    rng: Blocks,
) -> Filled:
    """Fill standardised rows, of which ``some`` are y, known (1 or 0) and noise_var (n, N)."""
    model = copy.deepcopy(model).cpu().double()
    energy = model.freeze()
    contrasts, q, A = model.contrasts.to(energy.mu), reference.to(energy.mu), scale.loadings
    scales, n = contrasts.log_scales.exp(), contrasts.n
    y, known, noise_var = some
    # What a column left out says of the others is what they say of it: it adds nothing where they are known.
    c, y = contrasts.centre.expand(len(A)) @ A, y.nan_to_num()
    at_unit = contrasts.units is None
    if at_unit:  # chains see what was measured as it is at unit contrast
        ways, stretches, widths = [A] * n, torch.ones_like(scales)[:, None], scales.square()
        ys, noise_vars = [known * (c + (y - c) / s) for s in scales], [noise_var / s**2 for s in scales]
    else:  # each contrast has columns of its own: x − c A = (z − c) ways
        stretches, widths = contrasts.stretch(scales[:, None]), torch.ones_like(scales)
        ways = [stretch[:, None] * A for stretch in stretches]
        ys, noise_vars = [known * (y - c + contrasts.centre @ way) for way in ways], [noise_var] * n
    seen_ys = torch.stack(ys, 1)  # (n, contrasts, N)
    # Contrasts that share a gain; at unit contrast and without noise nothing hangs on them but where measurements lie.
    groups = [slice(n)] if at_unit and not (noise_var > 0).any() else [slice(k, k + 1) for k in range(n)]

    def gains_of(mean: Tensor, covariance: Tensor) -> Gain:
        """Gains by group (n, groups, N, K), and evidence by contrast (n, contrasts)."""
        found = [condition(mean, covariance, ways[g][0], known, noise_vars[g][0], seen_ys[:, g]) for g in groups]
        return Gain(torch.stack([f.gain for f in found], 1), torch.cat([f.log_evidence for f in found], 1))

    D = energy.var.diag()
    under_model = gains_of(torch.zeros_like(energy.mu), D).gain
    parts = [gains_of(mean, L @ L.T) for mean, L in zip(q.means, q.factors, strict=True)]
    evidence = torch.stack([part.log_evidence for part in parts], 2) + q.weights.log()
    n_free = _rank(A, known * (noise_var == 0)) + (known * (noise_var > 0)).sum(1)
    wider = n_free[:, None] * contrasts.log_scales if at_unit else 0.0
    evidence = evidence + (contrasts.log_weights - wider).expand(len(y), -1)[:, :, None]
    edges = evidence.flatten(1).softmax(1).cumsum(1)  # (n, contrasts x components)
    gains = torch.stack([part.gain for part in parts], 2)  # (n, groups, components, N, K)
    by_row = edges, gains, under_model, known, seen_ys, torch.stack(noise_vars, 1).sqrt()
    edges, gains, under_model, known, seen_ys, noise_stds = (x.repeat_interleave(filling.n_chains, 0) for x in by_row)
    every, v_shape = torch.arange(len(edges)), (len(edges), len(energy.mu))

    def given(z: Tensor, k: Tensor, gain: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Chains z of contrasts k (chains,), moved by how far the columns that they say are from the measurements."""
        x = (stretches[k] * z) @ A + noise
        return z + torch.einsum("cn,cnk->ck", known * (seen_ys[every, k] - x), gain)

    def noise(k: Tensor) -> Tensor:
        """Noise of the measurements, as chains of contrasts k see it."""
        return noise_stds[every, k] * normal(known.shape, known, rng)

    def group_of(k: Tensor) -> Tensor:
        return k.clamp_max(len(groups) - 1)

    def propose() -> tuple[Tensor, Tensor]:
        which = (uniform((len(edges), 1), edges, rng) > edges).sum(1).clamp_max(edges.shape[1] - 1)
        k, part = which // len(q.weights), which % len(q.weights)
        z = q.means[part] + torch.einsum("ckl,cl->ck", q.factors[part], normal(v_shape, edges, rng))
        return given(z, k, gains[every, group_of(k), part], noise(k)), k[:, None]

    v, k = propose()
    W = torch.stack([ways[g][0] for g in groups])
    left = D - torch.einsum("skl,nslc->nskc", D @ W, under_model)  # (chains, ., K, K): covariance of z given h and y
    inside = torch.einsum("ski,cskl,sli->csi", W, left, W).clamp_min(0)
    total, squares, width = (torch.zeros_like(known) for _ in range(3))
    for t in range(filling.n_steps):
        seen_now = contrasts.seen(v, scales[k])
        k = contrasts.drawn(seen_now, energy.free_energy, rng)
        v, at = contrasts.at(seen_now, scales[k]), k[:, 0]
        gain = under_model[:, 0] if len(groups) == 1 else under_model[every, at]
        h, _ = hidden_update(energy.hidden_logits(v), rng=rng)
        mean = energy.visible_mean(h)
        if t >= filling.burn_in:
            x = contrasts.seen(given(mean, at, gain), scales[k]) @ A
            total += x
            squares += x.square()
            width += widths[k] * inside[every, group_of(at)]
        z = mean + energy.var.sqrt() * normal(v_shape, v, rng)
        v = given(z, at, gain, noise(at))
        new, new_k = propose()
        log_ratio = energy.free_energy(v) - energy.free_energy(new) + q.log_prob(v) - q.log_prob(new)
        decision = accept(log_ratio, rng)
        v, k = decision.select(new, v), decision.select(new_k, k)
    mean, second, width = filling.over(total, squares, width)
    draws = (contrasts.seen(v, scales[k]) @ A).view(-1, filling.n_chains, len(A.T))
    return Filled(mean, ((second - mean.square()).clamp_min(0) + width).sqrt(), draws)


def _rank(A: Tensor, exact: Tensor) -> Tensor:
    """How many of the columns of x = z A that are known exactly, by row (n, N), do not follow from the others: (n,)."""
    patterns, which = torch.unique(exact, dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
    ranks: Tensor = torch.linalg.matrix_rank(A * patterns[:, None], rtol=1e-8)[which]
    return ranks


@torch.no_grad()
def impute_censored(model: GRBM, frame: Frame, x: Tensor, filling: Filling = Filling()) -> Filled:
    """Fill columns x (n, N) of a censored model given those that are not NaN.

    Results are of measurements, which stop at the limits.
    """
    energy, transform, draws = model.freeze(), frame.transform, filling.new_draws(x)
    mean, std = x.clone(), torch.zeros_like(x)
    within, missing = frame.intervals(x), transform.exactly(x).isnan()

    def seen(chains: Chains) -> Tensor:
        """Columns less their mean, so that those far from 0 keep their digits."""
        return frame.columns(chains.v.detach().cpu()) - transform.mean

    for here, rng in filling.parts(missing.any(1).to(energy.W.device), CHUNK // filling.n_chains):
        some = here.cpu()
        given = Conditional.of(Interval(*(e[some].repeat_interleave(filling.n_chains, 0).to(energy.W) for e in within)))
        sampler = filling.tempered(given, frame.base, model.n_visible)
        v = sampler.noise(energy, len(given.observed), rng)
        *sums, last = filling.summed(energy, sampler, v, rng, seen)
        average, second = filling.over(*sums)
        mean[some], std[some] = average + transform.mean, (second - average.square()).clamp_min(0).sqrt()
        if filling.keep_draws:
            draws[some] = frame.columns(last.v.detach().cpu()).view(-1, *draws.shape[1:])
    return Filled(mean, std, draws)
