"""The Metropolis-Hastings decision, shared by all adjusted samplers."""

from typing import NamedTuple

import torch
from torch import Tensor

from grbm.randomness import Rng, uniform
from grbm.samplers.chains import Chains


class Decision(NamedTuple):
    accepted: Tensor  # (..., ) bool, per chain
    accept_prob: Tensor  # min(1, A)

    def select(self, new: Chains, old: Chains) -> Chains:
        """The new chain where accepted, else the old one, with its cache."""

        def choose(a: Tensor, b: Tensor) -> Tensor:
            accepted = self.accepted if a.ndim == self.accepted.ndim else self.accepted[..., None]
            return torch.where(accepted, a, b)

        state = tuple(choose(a, b) for a, b in zip(new.state, old.state, strict=True))
        return Chains(choose(new.v, old.v), choose(new.h, old.h), choose(new.h_prob, old.h_prob), state)


def accept(log_ratio: Tensor, rng: Rng) -> Decision:
    """Accept each chain with probability min(1, exp(log_ratio)); a NaN ratio is a rejection."""
    log_ratio = log_ratio.nan_to_num(nan=-torch.inf)
    accept_prob = log_ratio.clamp_max(0).exp()
    return Decision(uniform(log_ratio.shape, log_ratio, rng, chain_axis=-1) < accept_prob, accept_prob)
