"""Elementwise parts of a step: the definition that every faster version (`engines/`) must reproduce."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.core.randomness import Rng
from grbm.core.randomness import uniform as draw_uniform


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


class Decision(NamedTuple):
    """Which proposals were accepted, by chain."""

    accepted: Tensor  # (...,) bool
    accept_prob: Tensor  # (...,) min(1, A)

    def select(self, new: Tensor, old: Tensor) -> Tensor:
        """``new`` where the proposal was accepted, else ``old``: numbers per chain, (...,) or (..., units)."""
        accepted = self.accepted if new.ndim == self.accepted.ndim else self.accepted[..., None]
        return torch.where(accepted, new, old)


def accept(log_ratio: Tensor, rng: Rng) -> Decision:
    """Accept each chain with probability min(1, exp(log_ratio)) (Metropolis-Hastings); a NaN ratio is a rejection."""
    log_ratio = log_ratio.nan_to_num(nan=-torch.inf)
    accept_prob = log_ratio.clamp_max(0).exp()
    return Decision(draw_uniform(log_ratio.shape, log_ratio, rng, chain_axis=-1) < accept_prob, accept_prob)
