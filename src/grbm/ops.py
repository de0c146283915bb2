"""The elementwise work of a chain, in one place: the definition that any faster version must reproduce."""

import torch
from torch import Tensor


def draw_noise(like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normal draws in the shape, dtype and device of ``like``."""
    return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=like.device)


def visible_update(v: Tensor, mean: Tensor, shrink: Tensor, noise_std: Tensor, noise: Tensor) -> Tensor:
    """v' = m + shrink (v − m) + noise_std ξ, with m = μ + W h: every move of v given h."""
    return torch.addcmul(torch.lerp(mean, v, shrink), noise_std, noise)


def hidden_update(
    logits: Tensor, *, uniform: Tensor | None = None, rng: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """h' ~ Bernoulli(sigmoid(ℓ)) and its probabilities, from given uniforms in [0, 1) or from ``rng``."""
    prob = logits.sigmoid()
    if uniform is None:
        uniform = torch.rand(prob.shape, generator=rng, dtype=prob.dtype, device=prob.device)
    return (uniform < prob).to(prob.dtype), prob
