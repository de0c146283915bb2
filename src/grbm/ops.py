"""The elementwise work of a chain, in one place: the definition that any faster version must reproduce."""

import torch
from torch import Tensor

from grbm.randomness import Rng, normal
from grbm.randomness import uniform as draw_uniform


def draw_noise(like: Tensor, rng: Rng) -> Tensor:
    """Standard normal draws in the shape (..., C, ·), dtype and device of ``like``."""
    return normal(like.shape, like, rng)


def visible_update(v: Tensor, mean: Tensor, shrink: Tensor, noise_std: Tensor, noise: Tensor) -> Tensor:
    """v' = m + shrink (v − m) + noise_std ξ, with m = μ + W h: every move of v given h."""
    return torch.addcmul(torch.lerp(mean, v, shrink), noise_std, noise)


def hidden_update(logits: Tensor, *, uniform: Tensor | None = None, rng: Rng | None = None) -> tuple[Tensor, Tensor]:
    """h' ~ Bernoulli(sigmoid(ℓ)) and its probabilities, from given uniform numbers in [0, 1) or from ``rng``."""
    prob = logits.sigmoid()
    if uniform is None:
        if rng is None:
            raise ValueError("hidden_update needs either uniform or rng.")
        uniform = draw_uniform(prob.shape, prob, rng)
    return (uniform < prob).to(prob.dtype), prob
