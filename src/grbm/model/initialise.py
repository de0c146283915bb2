"""How the parameters start, in place: normal weights, hidden units anchored at the data, or rarely active ones."""

import math

import torch
from torch import Tensor

from grbm.core.options import sees_clusters
from grbm.core.randomness import generator, seed_of
from grbm.model.grbm import GRBM

WEAK = 0.01  # of the length of weights, that of units which begin weak
FEW = 0.1  # of the directions, in which hidden units then point


@torch.no_grad()
def paper_(model: GRBM, *, seed: int = 0) -> GRBM:
    """W ~ N(0, 1/(N + M)), b = mu = 0, σ² = 1 (Appendix B); `GRBM` starts so by itself."""
    start = GRBM(model.n_visible, model.n_hidden, seed=seed, dtype=model.W.dtype).state_dict()
    model.load_state_dict(start, strict=False)  # contrasts stay
    return model


@torch.no_grad()
def matched_(model: GRBM, data: Tensor, *, slope: float = 1.5, n_at_work: int | None = None, seed: int = 0) -> GRBM:
    """`anchored_`, with σ² = 1, the narrowest width of ``data`` (n, N), and weights as long as the data are wide.

    The longer the weights, the steeper the reconstruction μ + W p(h | v) is in v. Their length is the one at which its
    regression on v has ``slope`` times the share of the variance that σ² leaves to the hidden units. So the start
    depends little on the number of hidden units, which else is either too few for the data or far too strong. Where
    they are fewer than clusters ask for (`grbm.core.options.sees_clusters`), σ² = 0.3 and the unit is the whole
    table's. Where the data are wider than σ² in few of many directions, as clusters far apart are, weights point there:
    others would have to be so long that they widen the model in all the rest.

    Hidden units after the first ``n_at_work`` begin with weights of a hundredth of that length: too many strong units
    for the rows overshoot at rates at which fewer learn, and weak ones grow where they are of use. The
    others begin as in a machine that has no more. Raises ValueError where ``n_at_work`` is below 1.
    """
    if n_at_work is not None and n_at_work < 1:
        raise ValueError(f"n_at_work must be at least 1, got {n_at_work}.")
    if n_at_work is not None and n_at_work < model.n_hidden:
        few = GRBM(model.n_visible, n_at_work, dtype=model.W.dtype).to(model.W.device)
        matched_(few, data, slope=slope, seed=seed)
        length = WEAK * float(few.W.norm(dim=0).mean())
        anchored_(model, data, var=float(few.var[0]), length=length, seed=seed_of(seed, "weak"))
        model.W[:, :n_at_work], model.b[:n_at_work] = few.W, few.b
        model.mu.copy_(few.mu - 0.5 * model.W[:, n_at_work:].sum(1))
        return model
    if not sees_clusters(model.n_hidden):
        length = min(0.3, 1.5 * (model.n_visible / model.n_hidden) ** 0.5)
        return anchored_(model, data, var=0.3, length=length, seed=seed)
    data, ways = data.to(model.W), _ways(data)
    centred = data - data.mean(0)
    total = float(centred.square().mean(0).sum())
    wanted = slope * float((centred.square().mean(0) - 1).clamp_min(0).sum()) / total
    low, high = 1e-3, 30.0
    for _ in range(25):
        length = math.sqrt(low * high)
        anchored_(model, data, var=1.0, length=length, ways=ways, seed=seed)
        found = float((model.visible_mean(model(data)) * centred).mean(0).sum()) / total
        low, high = (length, high) if found < wanted else (low, length)
    model.mu.add_(data.mean(0) - model.visible_mean(model(data)).mean(0))
    return model


def _ways(data: Tensor) -> Tensor | None:
    """The root (N, N) of what the rows' covariance has above 1, where a few of many directions have most of that."""
    values, vectors = torch.linalg.eigh(torch.cov(data.double().T).view(data.shape[1], -1))
    above = (values - 1).clamp_min(0)
    is_spread = above.sum() ** 2 >= FEW * len(above) * above.square().sum()  # their effective number
    return None if is_spread else vectors * above.sqrt() @ vectors.T


@torch.no_grad()
def gaussian_(model: GRBM, mean: Tensor, var: Tensor) -> GRBM:
    """A Gaussian with independent units: W = 0, so that no hidden unit is at work."""
    return _set(model, torch.zeros_like(model.W), torch.zeros_like(model.b), mean, var.log())


def _set(model: GRBM, W: Tensor, b: Tensor, mu: Tensor, log_var: Tensor) -> GRBM:
    """The ``model`` with these parameters."""
    for name, x in {"W": W, "b": b, "mu": mu, "log_var": log_var}.items():
        model.get_parameter(name).copy_(x)
    return model


@torch.no_grad()
def anchored_(
    model: GRBM, data: Tensor, *, var: float = 0.3, length: float = 0.3, ways: Tensor | None = None, seed: int = 0
) -> GRBM:
    """Start each hidden unit's ridge ℓ_j = 0 at a random data point.

    w_j is a random direction of length ``length``, b_j = −w_j·x_k/σ² for a random row x_k of ``data`` (n, N), and
    μ = mean(x) − ½ Σ_j w_j, so that every unit is undecided somewhere in the data. Choose ``var`` near the narrowest
    variance in the data: the model can widen a mode by its hidden units, but not narrow it. In 2-D this start decides
    which optimum is reached: from the paper's weights even the exact gradient ends in a poor one. With ``ways`` (N, N)
    directions are those of normal numbers times it, else all alike likely.
    """
    rng = generator(seed, "anchored")
    direction = torch.randn(model.n_visible, model.n_hidden, generator=rng, dtype=torch.float64)
    direction = direction if ways is None else ways.cpu() @ direction
    W = (length * direction / direction.norm(dim=0)).to(model.W)
    anchors = data[torch.randint(len(data), (model.n_hidden,), generator=rng)].to(model.W)
    mu, log_var = data.to(model.W).mean(0) - 0.5 * W.sum(1), torch.full_like(model.log_var, math.log(var))
    return _set(model, W, -(W * anchors.T).sum(0) / var, mu, log_var)


@torch.no_grad()
def sparse_(model: GRBM, data: Tensor, *, share: float = 0.01, seed: int = 0) -> GRBM:
    """Start with hidden units that are rarely active, as Melchior, Wang & Wiskott 2017 do for natural images.

    W ~ U(±sqrt(6/(N + M))), μ and σ are the mean and deviation of each column of ``data`` (n, N), the latter at least a
    tenth of that of all, and b_j makes the state in which unit j alone is active ``share`` times as probable as that in
    which none is.
    On whitened data, whose covariance a Gaussian has already, the paper's small weights have hardly a gradient to leave
    0; from here the weights find features.
    """
    rng = generator(seed, "sparse")
    limit = (6 / (model.n_visible + model.n_hidden)) ** 0.5
    uniform = torch.rand(model.n_visible, model.n_hidden, generator=rng, dtype=torch.float64)
    mean, var = data.double().mean(0), data.double().var(0, correction=0)
    std = torch.maximum(var, 0.01 * var.mean()).sqrt()
    W = limit * (2 * uniform - 1)
    ratio = 0.5 * (((mean[:, None] + W).square() - mean.square()[:, None]) / std.square()[:, None]).sum(0)
    return _set(model, W, math.log(share) - ratio, mean, 2 * std.log())
