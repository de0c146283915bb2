"""Free energies along the path from a Gaussian base to a model, of states that are asked at several temperatures."""

from torch import Tensor

from grbm.model import Base, Energy, softplus


class PathState:
    """Parts of F_β(v) − F_β'(v) that depend on v, for all β: energies without hidden units, and the logits at β = 1.

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
