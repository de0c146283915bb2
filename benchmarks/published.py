"""The published algorithm, step by step, as the authors' program runs it: what speed is measured against.

Unadjusted Gibbs-Langevin (Alg. 2): K inner steps, each with its own product with W and its own normal draw; h by
`torch.bernoulli`; the states of all steps are kept, and the statistics are one product over all of them at the end.
"""

import math

import torch
from torch import Tensor

from grbm.model import Energy


def negative_phase(energy: Energy, v: Tensor, n_steps: int, n_inner: int, step_size: float) -> tuple[Tensor, ...]:
    """Moments of v, v², h and v hᵀ over ``n_steps`` steps from v (C, N), from PyTorch's global random numbers."""
    W, b, mu, var = energy.W, energy.b, energy.mu, energy.var

    def draw_h(v: Tensor) -> Tensor:
        return torch.bernoulli(torch.sigmoid((v / var) @ W + b))

    h = draw_h(v)
    kept_v, kept_h = [], []
    alpha_0 = step_size * float(var.mean())
    for _ in range(n_steps):
        for k in range(n_inner):
            alpha = alpha_0 * 0.5 * (1 + math.cos(math.pi * k / n_inner))
            v = v - alpha * (v - mu - h @ W.T) / var + math.sqrt(2 * alpha) * torch.randn_like(v)
        h = draw_h(v)
        kept_v.append(v)
        kept_h.append(h)
    v, h = torch.cat(kept_v), torch.cat(kept_h)
    return v.mean(0), v.square().mean(0), h.mean(0), torch.einsum("bi,bj->ij", v, h) / len(v)
