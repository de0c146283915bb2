"""The path from a Gaussian base to a model: chains that follow it, and the log weights that this gives them."""

import torch
from torch import Tensor

from grbm.core.randomness import Rng, normal, uniform
from grbm.model import Base, Energy, softplus
from grbm.model.censoring import Interval
from grbm.samplers.engines import engine_for
from grbm.samplers.engines.definition import Engine, Followed
from grbm.samplers.truncated import truncated_normal
from grbm.samplers.updates import hidden_update, visible_update


class PathState:
    """What F_β(v) − F_β'(v) needs of v, for any two β: energies without hidden units, and the logits at β = 1.

    In float64 throughout (``energy`` too): where weights hardly vary, float32 would err more than the standard error.
    """

    def __init__(self, energy: Energy, base: Base, v: Tensor) -> None:
        exactly = v.double()
        self.base_part = 0.5 * ((exactly - base.mean.double()).square() / base.var.double()).sum(-1)
        self.model_part = 0.5 * ((exactly - energy.mu).square() / energy.var).sum(-1)
        self.logits = energy.hidden_logits(exactly)

    def free_energy(self, beta: float) -> Tensor:
        """F_β(v); β multiplies all that is not the base's."""
        parts = (1 - beta) * self.base_part + beta * self.model_part
        return parts - softplus(beta * self.logits).sum(-1)

    def slope(self, beta: float) -> Tensor:
        """−∂F_β/∂β."""
        return self.base_part - self.model_part + (self.logits * (beta * self.logits).sigmoid()).sum(-1)


def follow(
    energy: Energy,
    base: Base,
    betas: Tensor,
    v: Tensor,
    rng: Rng,
    *,
    back: bool = False,
    within: Interval | None = None,
    engine: Engine | None = None,
) -> Followed:
    """Chains v (C, N) along E_β = (1 − β) E_0 + β E_1, a Gibbs step at each of ``betas`` (K + 1,) but the first.

    Forth: v is from the base, and before the step at β_k the weight grows by F_{β_{k−1}}(v) − F_{β_k}(v). Back: v is
    from the model, the same path in reverse, and the same terms are taken after each step. A step draws h ~ p(h | v),
    then v ~ p(v | h); its logits serve the weight too. With ``within`` (C, N) the path is that of v in these intervals.
    The ``engine`` is by default the fastest for these numbers.
    """
    engine = engine or engine_for(energy.W, rng)
    if within is None and (found := engine.anneal(energy, base, betas, v, rng, back=back)) is not None:
        return found
    exactly, ladder = energy.to(torch.float64), betas.tolist()
    state = PathState(exactly, base, v)
    log_weight = torch.zeros(len(v), dtype=torch.float64, device=v.device)
    for k in range(len(ladder) - 1, 0, -1) if back else range(1, len(ladder)):
        if not back:
            log_weight += state.free_energy(ladder[k - 1]) - state.free_energy(ladder[k])
        here = energy.temper(betas[k], base)
        h, _ = hidden_update((ladder[k] * state.logits).to(v), rng=rng)
        mean, std = here.visible_mean(h), here.var.sqrt()
        if within is None:
            v = visible_update(v, mean, torch.zeros_like(std), std, normal(v.shape, v, rng))
        else:
            v = truncated_normal(mean, std, within, uniform(v.shape, v, rng))
        state = PathState(exactly, base, v)
        if back:
            log_weight += state.free_energy(ladder[k - 1]) - state.free_energy(ladder[k])
    return Followed(log_weight, v)
