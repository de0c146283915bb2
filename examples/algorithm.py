"""The paper's algorithm on one page: Gibbs-Langevin sampling (Algorithm 2) and modified contrastive divergence
(Algorithm 3) as they are printed, in plain PyTorch.

Of the package it uses the model's parameters and nothing else: W (N, M), b (M,), mu (N,), log_var (N,). It is slow,
and it is right: `tests/test_examples.py` holds the library, which collapses the inner loop and runs chains in native
code, against it. Where it departs from the print it says so.
"""

import math

import torch
from torch import Tensor

from grbm import GRBM


def draw_hidden(model: GRBM, v: Tensor, rng: torch.Generator) -> Tensor:
    """h ~ p(h | v) = Bernoulli(sigmoid(Wᵀ(v/σ²) + b)) (Eq. 4): (C, N) -> (C, M)."""
    probability = ((v / model.var) @ model.W + model.b).sigmoid()
    return torch.bernoulli(probability, generator=rng)


def energy_slope(model: GRBM, v: Tensor, h: Tensor) -> Tensor:
    """∂E/∂v = (v − μ − W h)/σ² (Eq. 21)."""
    return (v - model.mu - h @ model.W.T) / model.var


def gibbs_langevin(
    model: GRBM, v: Tensor, n_steps: int, n_inner: int, step_size: float, rng: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Algorithm 2 without the Metropolis step: ``n_steps`` states (v, h) of chains that start at v (C, N).

    α_k falls by the cosine (Eq. 22), scaled by the mean variance (Section 3.2). It is counted from k = 0, as in the
    authors' program: from k = 1, as printed, the last step would be 0.
    """
    h, states = draw_hidden(model, v, rng), []
    for _ in range(n_steps):
        for k in range(n_inner):  # Langevin steps on E(·, h) (Eq. 9)
            alpha = 0.5 * step_size * model.var.mean() * (1 + math.cos(k * math.pi / n_inner))
            noise = torch.randn(v.shape, generator=rng, dtype=v.dtype)
            v = v - alpha * energy_slope(model, v, h) + (2 * alpha).sqrt() * noise
        h = draw_hidden(model, v, rng)
        states.append((v, h))
    return states


def slopes(model: GRBM, v: Tensor, h: Tensor) -> dict[str, Tensor]:
    """⟨−∂E/∂θ⟩ over states v (C, N), h (C, M) (Eqs. 14-17)."""
    drive = h @ model.W.T
    return {
        "W": (v / model.var).T @ h / len(v),
        "b": h.mean(0),
        "mu": ((v - model.mu) / model.var).mean(0),
        "log_var": ((v - model.mu) ** 2 / (2 * model.var) - v * drive / model.var).mean(0),
    }


@torch.no_grad()
def modified_cd(
    model: GRBM, data: Tensor, n_steps: int, n_inner: int, step_size: float, rng: torch.Generator
) -> dict[str, Tensor]:
    """Algorithm 3: the gradient of the log-likelihood on a batch (B, N), by negative chains that start from noise."""
    positive = slopes(model, data, draw_hidden(model, data, rng))
    noise = torch.randn(data.shape, generator=rng, dtype=data.dtype)
    states = gibbs_langevin(model, noise, n_steps, n_inner, step_size, rng)
    v, h = (torch.cat(x) for x in zip(*states, strict=True))  # every state of every chain counts
    negative = slopes(model, v, h)
    return {name: positive[name] - negative[name] for name in positive}


def train(model: GRBM, data: Tensor, n_updates: int, batch_size: int = 100, learning_rate: float = 0.01) -> None:
    """Plain gradient ascent: rates fall by the cosine, the gradient's norm is clipped to 10 (Section 4)."""
    rng = torch.Generator().manual_seed(0)
    for update in range(n_updates):
        batch = data[torch.randint(len(data), (batch_size,), generator=rng)]
        gradient = modified_cd(model, batch, n_steps=100, n_inner=10, step_size=0.04, rng=rng)
        norm = torch.cat([step.flatten() for step in gradient.values()]).norm()
        rate = 0.5 * learning_rate * (1 + math.cos(math.pi * update / n_updates)) * min(1.0, 10 / float(norm))
        with torch.no_grad():
            for name, step in gradient.items():
                model.get_parameter(name).add_(rate * step)


if __name__ == "__main__":  # two clusters, learned in some ten seconds: samples come out about as wide as the data
    seeded = torch.Generator().manual_seed(1)
    noise, start = (torch.randn(1000, 2, generator=seeded) for _ in range(2))
    rows = torch.cat([noise[:500] - 2, noise[500:] + 2])
    model = GRBM(n_visible=2, n_hidden=16)
    train(model, rows, n_updates=100, learning_rate=0.05)
    with torch.no_grad():
        v, _ = gibbs_langevin(model, start, n_steps=100, n_inner=10, step_size=0.04, rng=seeded)[-1]
    print(f"mean and deviation of samples: {v.mean(0).tolist()}, {v.std(0).tolist()}")
    print(f"mean and deviation of the data: {rows.mean(0).tolist()}, {rows.std(0).tolist()}")
