"""The energy function as plain tensors (Eqs. 1-5, 21), and its tempered path.

Shapes: visible units v (..., N) real, hidden units h (..., M) in {0, 1}; energies are per sample, (...).
Equation numbers are those of Liao et al. 2022, "Gaussian-Bernoulli RBMs Without Tears" (arXiv:2210.10318).
"""

import functools
import math
from typing import ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from grbm.core.options import Precision
from grbm.core.randomness import Rng, normal


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)); PyTorch's default threshold of 20 would cost 2e-9, which float64 can see."""
    return functional.softplus(x, threshold=40.0)


class Base(NamedTuple):
    """A Gaussian with independent units, where every tempered path starts; its hidden units are fair coins.

    It is itself a GRBM with W = 0, b = 0, so E_0(v, h) = ½ Σ (v − mean)²/var. ``mean`` and ``var`` are (N,).
    """

    mean: Tensor
    var: Tensor

    @classmethod
    def fit(cls, data: Tensor, floor: float = 1e-4) -> "Base":
        """Match the mean and variance of each column of ``data`` (n, N); constant columns get the floor."""
        return cls(data.mean(0), data.var(0, correction=0).clamp_min(floor))

    def sample(self, shape: tuple[int, ...], rng: Rng) -> Tensor:
        """Draws ``(*shape, N)``; the last axis of ``shape`` is that of the chains."""
        return self.mean + self.var.sqrt() * normal((*shape, len(self.mean)), self.mean, rng)

    def energy(self, v: Tensor) -> Tensor:
        """E_0(v) = ½ Σ (v − mean)²/var, per sample: (..., N) -> (...)."""
        return 0.5 * ((v - self.mean).square() / self.var).sum(-1)

    def log_z(self, n_hidden: int) -> Tensor:
        """log Z_0 = ½ Σ log 2πvar + M log 2, a float64 scalar."""
        return 0.5 * (2 * math.pi * self.var.double()).log().sum() + n_hidden * math.log(2)


class Sized:
    """Sizes of whatever has weights W (N, M)."""

    W: Tensor

    @property
    def n_visible(self) -> int:
        """N, the number of visible units."""
        return self.W.shape[0]

    @property
    def n_hidden(self) -> int:
        """M, the number of hidden units."""
        return self.W.shape[1]


class Energy(Sized):
    """The energy function (Eq. 1) as plain tensors, with what every step of a chain needs computed once.

    Parameters
    ----------
    W, b, mu, var : Tensor
        (N, M), (M,), (N,), (N,).
    precision : {"highest", "high", "fast"}
        What the operands of products in chains may be: float32; TF32; half precision, centred and in units of σ.
        Sums, logits and statistics are float32 in any case, and so is all outside of chains.
    """

    is_tempered: ClassVar[bool] = False

    def __init__(self, W: Tensor, b: Tensor, mu: Tensor, var: Tensor, precision: Precision = "highest") -> None:
        self.W, self.b, self.mu, self.var, self.precision = W, b, mu, var, precision
        self._projection: Tensor | None = None
        self._at: dict[Precision, Energy] = {}  # what `at` has made

    @property
    def projection(self) -> Tensor:
        """(W/σ²)ᵀ of the untempered energy, (M, N): maps v to the hidden logits. Made when first asked for."""
        if self.W.requires_grad or self.var.requires_grad:  # each use has a graph of its own
            return (self.W / self.var[:, None]).T
        if self._projection is None:
            with torch.inference_mode(False):  # it may be used outside of it
                self._projection = (self.W / self.var[:, None]).T
        return self._projection

    @property
    def untempered(self) -> "Energy":
        """The energy at β = 1, with which a tempered one shares W."""
        return self

    def temper(self, beta: Tensor, base: Base) -> "TemperedEnergy":
        """(1 − β) E_0 + β E_1 for a scalar ``beta`` or a ladder (R,), for states (R, C, ·)."""
        beta = beta.to(self.W)
        return TemperedEnergy(self, beta[:, None, None] if beta.ndim else beta, base)

    def at(self, precision: Precision) -> "Energy":
        """This energy with products of another precision; itself where it has that already."""
        if precision == self.precision:
            return self
        if precision not in self._at:
            self._at[precision] = Energy(self.W, self.b, self.mu, self.var, precision)
        return self._at[precision]

    def to(self, like: Tensor | torch.dtype) -> "Energy":
        """This energy on the device of ``like``, in its dtype; or in the dtype ``like``."""
        return Energy(self.W.to(like), self.b.to(like), self.mu.to(like), self.var.to(like), self.precision)

    def hidden_logits(self, v: Tensor) -> Tensor:
        """ℓ = Wᵀ(v/σ²) + b, the log-odds of h = 1 given v (Eq. 4): (..., N) -> (..., M)."""
        return functional.linear(v, self.projection, self.b)

    def visible_mean(self, h: Tensor) -> Tensor:
        """μ + W h, the mean of p(v | h) (Eq. 3): (..., M) -> (..., N)."""
        return functional.linear(h, self.W, self.mu)

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h) (Eq. 1), per sample."""
        return self._quadratic(v) - (h * self.hidden_logits(v)).sum(-1)

    def free_energy(self, v: Tensor, logits: Tensor | None = None) -> Tensor:
        """F(v) = −log Σ_h exp(−E(v, h)) (Eq. 5; the paper's marginal energy). Pass ``logits`` where already known."""
        logits = self.hidden_logits(v) if logits is None else logits
        return self._quadratic(v) - softplus(logits).sum(-1)

    def energy_grad(self, v: Tensor, h: Tensor) -> Tensor:
        """∂E/∂v = (v − μ − W h)/σ²."""
        return (v - self.visible_mean(h)) / self.var

    def free_energy_grad(self, v: Tensor) -> Tensor:
        """∂F/∂v = (v − μ − W sigmoid(ℓ))/σ² (Eq. 21)."""
        return self.energy_grad(v, self.hidden_logits(v).sigmoid())

    def _quadratic(self, v: Tensor) -> Tensor:
        return 0.5 * ((v - self.mu).square() / self.var).sum(-1)


class TemperedEnergy(Energy):
    """E_β = (1 − β) E_0 + β E_1 for a :class:`Base` E_0 and an energy E_1: again that of a GRBM.

    var_β = 1/((1 − β)/var_0 + β/var), W_β = (β var_β/var) ∘ W by rows and b_β = βb. All its inverse temperatures share
    W: β enters as a factor of the logits and of the drive W h, so replicas share each matrix product. `Energy.temper`
    gives it.

    Parameters
    ----------
    untempered : Energy
        E_1, at β = 1.
    beta : Tensor
        (), or a ladder (R, 1, 1): then b is (R, 1, M), mu and var are (R, 1, N).
    base : Base
        E_0.

    Attributes
    ----------
    gain : Tensor
        β var_β/var, which scales the drive W h.
    """

    is_tempered = True

    def __init__(self, untempered: Energy, beta: Tensor, base: Base) -> None:
        one = untempered
        inverse_var = (1 - beta) / base.var + beta / one.var
        var = 1 / inverse_var
        mu = var * ((1 - beta) * base.mean / base.var + beta * one.mu / one.var)
        super().__init__(one.W, beta * one.b, mu, var, one.precision)
        self.beta, self.gain, self.base = beta, beta * var / one.var, base
        self._untempered = one

    @property
    def untempered(self) -> Energy:
        return self._untempered

    @property
    def projection(self) -> Tensor:
        return self._untempered.projection

    @functools.cached_property
    def offset(self) -> Tensor:
        """The constant that keeps E_β = (1 − β) E_0 + β E_1 exact. Made when first asked for."""
        one, beta, base = self._untempered, self.beta, self.base
        squares = (1 - beta) * base.mean**2 / base.var + beta * one.mu**2 / one.var - self.mu**2 / self.var
        return 0.5 * squares.sum(-1)

    def temper(self, beta: Tensor, base: Base) -> NoReturn:
        """Raise ValueError: the logits would keep only the inner of two inverse temperatures."""
        raise ValueError(
            "A tempered energy cannot be tempered again: give annealed chains and replicas a sampler without replicas, "
            "such as grbm.Gibbs()."
        )

    def plain(self) -> Energy:
        """An untempered energy of its own for this one inverse temperature; a constant is lost."""
        return Energy(self.gain[:, None] * self.W, self.b, self.mu, self.var, self.precision)

    def hidden_logits(self, v: Tensor) -> Tensor:
        return functional.linear(self.beta * v, self.projection) + self.b

    def visible_mean(self, h: Tensor) -> Tensor:
        return self.mu + self.gain * functional.linear(h, self.W)

    def _quadratic(self, v: Tensor) -> Tensor:
        return super()._quadratic(v) + self.offset


def base_for(base: Base | None, energy: Energy) -> Base:
    """The base on the energy's device, in its dtype; N(0, I), which fits standardised data, where it is None."""
    if base is None:
        return Base(torch.zeros_like(energy.W[:, 0]), torch.ones_like(energy.W[:, 0]))
    return Base(base.mean.to(energy.W), base.var.to(energy.W))
