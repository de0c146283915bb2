"""Spectral steps: W moves as far along every singular direction of its gradient, not by how steep each happens to be.

log Z bends by the largest singular value of a change of W, and not by the sum over all of its entries (Carlson,
Cevher & Carin 2015; with Gaussian units Fan 2017, arXiv:1703.09766): the steepest step for U S Vᵀ is along U Vᵀ.
"""

import torch
from torch import Tensor

from grbm.core.devices import half, threads
from grbm.model import GRBM, Energy
from grbm.samplers.moments import Pooled

QUINTIC = 3.4445, -4.7750, 2.0315  # takes (0, 1] into (0, 1.21), and small numbers up fast (Jordan et al. 2024, Muon)
N_ITERATIONS = 3  # of it: above 0.02 of the gradient's norm all come out between 0.67 and 1.21; below is mostly noise
SMALL = 192  # rows or columns, below which a product that threads share may be rounded otherwise by each number of them


def orthogonalised(gradient: Tensor, n_iterations: int = N_ITERATIONS, dtype: torch.dtype | None = None) -> Tensor:
    """About U Vᵀ of a ``gradient`` U S Vᵀ (N, M), by Newton-Schulz iterations: products alone; 0 stays 0.

    An iteration takes X into P X with P = a + b G + c G² of G = X Xᵀ. All of these P and G are polynomials in the first
    G, and so symmetric, of X's shorter side, and P G P is the next G: X itself is multiplied once, at the end.
    ``dtype`` is that of the products' operands, for half precision, where X is taken along, since a G that is rounded
    so loses singular values below a sixteenth of the largest; None for the gradient's own.
    """
    wide = gradient.mT if gradient.shape[0] > gradient.shape[1] else gradient
    x = (wide / wide.norm().clamp_min(1e-20)).to(dtype or wide.dtype)  # squares of less underflow
    a, b, c = QUINTIC
    with threads(1 if x.device.type == "cpu" and len(x) < SMALL else None):  # no slower: such products are short
        if dtype is not None:
            for _ in range(n_iterations):
                gram = x @ x.mT
                x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        else:
            gram, taken = _symmetric(x, x.mT), torch.eye(len(x), dtype=x.dtype, device=x.device)
            for k in range(n_iterations):
                p = (b * gram).add_(_symmetric(gram, gram), alpha=c)
                p.diagonal().add_(a)
                taken = _symmetric(p, taken) if k else p
                if k + 1 < n_iterations:
                    gram = _symmetric(_symmetric(p, gram), p)
            x = taken @ x
    return (x.mT if wide is not gradient else x).to(gradient)


def _symmetric(a: Tensor, b: Tensor) -> Tensor:
    """The product a b (n, n) where it is symmetric: three quarters of it are computed where they are large."""
    k = len(a) // 2
    if k < SMALL:
        return a @ b
    product = a.new_empty(len(a), len(a))
    torch.mm(a[:k], b, out=product[:k])
    torch.mm(a[k:], b[:, k:], out=product[k:, k:])
    product[k:, :k] = product[:k, k:].mT
    return product


def equalise(model: GRBM, energy: Energy, pooled: Pooled, norm: float, *, centred: bool) -> None:
    """Replace the gradient of W by ``norm`` times U Vᵀ; where it is centred, those of b and μ follow W's new one.

    Where products of ``energy`` are of the precision fast, so are these, if they are large.
    """
    W, b, mu = (model.get_parameter(name).grad for name in ("W", "b", "mu"))
    assert W is not None
    assert b is not None
    assert mu is not None
    is_fast = energy.precision == "fast" and min(W.shape) >= SMALL
    step = norm * orthogonalised(W, dtype=half(W.device) if is_fast else None)
    if centred:
        less = W - step
        b.add_((pooled.data_v.to(W) / pooled.n_data / energy.var) @ less)
        mu.add_(less @ pooled.mean_h)
    W.copy_(step)
