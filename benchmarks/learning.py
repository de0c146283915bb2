"""Adam for so many seconds: how networks learn that machines are set beside."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from grbm.core.randomness import generator

LOOKS = 20  # at how far it is, where asked for


def learn(
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    rows: Tensor,
    seconds: float,
    seed: int,
    *,
    rows_each: int = 128,
    clip_norm: float | None = None,
    look: Callable[[], object] | None = None,
) -> int:
    """Adam at 1e-3, falling to 0 by a cosine over ``seconds`` of processor time; returns the number of steps.

    ``look`` is called twenty times on the way, while the clock stands still.
    """
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    began, paused, step, done, looks = time.process_time(), 0.0, 0, 0.0, 0
    while done < 1:
        for chosen in torch.randperm(len(rows), generator=generator(seed, "order", step)).split(rows_each):
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * done))
            optimizer.zero_grad()
            torch.autograd.backward([loss(rows[chosen])])
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
            optimizer.step()
            step, done = step + 1, min(1.0, (time.process_time() - began - paused) / seconds)
            if look is not None and done * LOOKS >= looks + 1:
                looks, since = looks + 1, time.process_time()
                look()
                paused += time.process_time() - since
            if done >= 1:
                break
    return step
