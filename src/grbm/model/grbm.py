"""The Gaussian-Bernoulli RBM as a PyTorch module: parameters, and what is differentiable in them; files.

Shapes: visible units v (..., N) real, hidden units h (..., M) in {0, 1}; energies are per sample, (...).
Equation numbers are those of Liao et al. 2022, "Gaussian-Bernoulli RBMs Without Tears" (arXiv:2210.10318).
"""

import json
import math
import warnings
from pathlib import Path
from typing import Any, Self, SupportsFloat

import torch
from torch import Tensor, nn

from grbm.core import memory
from grbm.core.errors import UserError
from grbm.core.files import read_tensors, write_tensors, write_text
from grbm.core.notebook import facts
from grbm.core.options import Precision
from grbm.core.randomness import Rng, generator
from grbm.model import censoring, contrasts
from grbm.model.censoring import UNCENSORED, Censoring
from grbm.model.contrasts import UNIT, Contrasts
from grbm.model.energy import Energy, Sized

WEIGHTS, CONFIG = "model.safetensors", "config.json"  # in a folder


class GRBM(Sized, nn.Module):
    """A Gaussian-Bernoulli restricted Boltzmann machine with one variance per visible unit.

    E(v, h) = ½ Σ_i (v_i − μ_i)²/σ_i² − Σ_i (v_i/σ_i²)(W h)_i − b·h  (Eq. 1)

    Parameters
    ----------
    n_visible, n_hidden : int
        N real visible units and M binary hidden units.
    seed : int
        Seed of the weights W ~ N(0, 1/(N + M)); b = mu = 0 and σ² = 1, as in the paper.
    n_contrasts : int
        K scales at which the machine stands, from a third to three times its own; 1 is the machine itself.
    device, dtype
        As everywhere in PyTorch; float32 or float64.

    Attributes
    ----------
    W, b, mu, log_var : nn.Parameter
        (N, M), (M,), (N,), (N,).

    Raises
    ------
    ValueError
        If a size is not positive.
    """

    def __init__(
        self,
        n_visible: int,
        n_hidden: int,
        *,
        seed: int = 0,
        n_contrasts: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("n_visible", n_visible), ("n_hidden", n_hidden), ("n_contrasts", n_contrasts)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}.")
        dtype = dtype or torch.float32
        scale = (n_visible + n_hidden) ** -0.5
        weights = scale * torch.randn(n_visible, n_hidden, generator=generator(seed, "weights"), dtype=dtype)
        self.W = nn.Parameter(weights.to(device))
        self.b = nn.Parameter(torch.zeros(n_hidden, device=device, dtype=dtype))
        self.mu = nn.Parameter(torch.zeros(n_visible, device=device, dtype=dtype))
        self.log_var = nn.Parameter(torch.zeros(n_visible, device=device, dtype=dtype))
        if n_contrasts > 1:
            weights = torch.full((n_contrasts,), -math.log(n_contrasts), dtype=dtype)
            scales = torch.linspace(-math.log(3), math.log(3), n_contrasts, dtype=dtype)
            self.contrasts = Contrasts(weights, scales, torch.zeros(n_visible, dtype=dtype)).to(self.W.data)

    @property
    def contrasts(self) -> Contrasts:
        """The scales that the machine stands at, with weights and centre (`grbm.model.contrasts`); `UNIT` for its own
        alone.

        The density is then that at a contrast that is not known; what `freeze` gives is the model at unit contrast.
        """
        known = [self._buffers.get(name) for name in contrasts.NAMES]
        return UNIT if known[0] is None else Contrasts(*known)  # type: ignore[arg-type]

    @contrasts.setter
    def contrasts(self, given: Contrasts) -> None:
        self._keep(contrasts.NAMES, given.tensors())

    @property
    def censoring(self) -> Censoring:
        """The limits at which measurements of visible units stop (`grbm.model.censoring`); `UNCENSORED` without any.

        The energy, and what `freeze` gives, are of the latent values.
        """
        low, high = (self._buffers.get(name) for name in censoring.NAMES)
        return UNCENSORED if low is None or high is None else Censoring(low, high)

    @censoring.setter
    def censoring(self, given: Censoring) -> None:
        self._keep(censoring.NAMES, given.tensors())

    def _keep(self, names: tuple[str, ...], tensors: dict[str, Tensor]) -> None:
        for name in names:
            self.register_buffer(name, tensors[name].detach().to(self.W.data).clone() if name in tensors else None)

    @classmethod
    def from_parameters(cls, parameters: dict[str, Tensor], source: str = "The dictionary") -> Self:
        """A machine of the given W, b, mu, log_var; ``source`` names them in errors.

        Raises UserError where one is missing, has the wrong shape, or holds numbers that are not finite.
        """
        names = ("W", "b", "mu", "log_var")
        if missing := [name for name in names if name not in parameters]:
            raise UserError(f"{source} lacks the parameter {missing[0]}; a GRBM has W, b, mu and log_var.")
        W = parameters["W"]
        if W.ndim != 2 or 0 in W.shape or W.dtype not in (torch.float32, torch.float64):
            raise UserError(f"{source} holds W of shape {tuple(W.shape)} and type {W.dtype}; it must be a real (N, M).")
        model = cls(*W.shape, dtype=W.dtype)
        model.contrasts = contrasts.from_tensors(parameters, len(W), source)
        model.censoring = censoring.from_tensors(parameters, len(W), source)
        for name in names:
            expected, given = model.get_parameter(name).shape, parameters[name]
            if given.numel() != expected.numel():
                raise UserError(
                    f"{source} holds {name} of shape {tuple(given.shape)}, but W {tuple(W.shape)} needs {expected}."
                )
            if not torch.isfinite(given).all():
                raise UserError(f"{source} holds NaN or infinite numbers in {name}.")
            with torch.no_grad():
                model.get_parameter(name).copy_(given.reshape(expected))
        return model

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """The machine that `save_pretrained` wrote, or that a run folder holds: ``model.safetensors`` in ``folder``.

        Raises UserError where the file is missing, damaged, or no GRBM, and warns where it is a run's: its machine is
        one of rows as the run standardised them.
        """
        path = Path(folder) / WEIGHTS
        if Path(folder).is_file():
            raise UserError(f"{folder} is a file; give a folder that save_pretrained or `grbm export` wrote, or a run.")
        if not path.is_file():
            raise UserError(f"{path} is missing; give a folder that save_pretrained or `grbm export` wrote, or a run.")
        if (path.parent / "data.safetensors").is_file():
            warnings.warn(
                f"{folder} is a run, whose machine takes rows as the run standardised them: run = grbm.runs.read("
                f"Path({str(folder)!r})); run.fitted.log_prob(x, run.fitted.log_partition().value)",
                UserWarning,
                stacklevel=2,
            )
        return cls.from_parameters(read_tensors(path), str(path))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``model.safetensors`` (all parameters) and ``config.json`` (sizes, dtype) into ``folder``.

        Each is written whole or not at all. What data were standardised by is not part of a machine; `rescaled` puts it
        in.

        Raises UserError where the folder holds a run, whose files these would replace.
        """
        folder = Path(folder)
        described = {"model_type": "grbm", "n_visible": self.n_visible, "n_hidden": self.n_hidden}
        described["dtype"] = str(self.W.dtype).removeprefix("torch.")
        if (folder / CONFIG).is_file() and '"model_type": "grbm"' not in (folder / CONFIG).read_text(encoding="utf-8"):
            raise UserError(f"{folder} holds a {CONFIG} of something else, perhaps a run; choose another folder.")
        write_tensors(folder / WEIGHTS, dict(self.state_dict()))
        write_text(folder / CONFIG, json.dumps(described, indent=2) + "\n")

    @torch.no_grad()
    def rescaled(self, mean: Any, scale: Any) -> Self:
        """The same density of x = mean + scale z, for a machine that knows z: one in the data's own units.

        Exact: σ_x² = scale² σ², μ_x = mean + scale μ, W_x = scale W by rows, b_x = b − Wᵀ(mean/(scale σ²)). Energies
        are equal, and log Z grows by Σ log scale. ``mean`` and ``scale`` are (N,),
        tensors or arrays, such as a StandardScaler's ``mean_`` and ``scale_``.
        """
        W, b, mu, log_var = (p.detach().double().cpu() for p in (self.W, self.b, self.mu, self.log_var))
        mean, scale = (torch.as_tensor(x, dtype=torch.float64).detach().cpu() for x in (mean, scale))
        if any(x.shape not in ((), mu.shape) for x in (mean, scale)) or not (scale > 0).all():
            raise ValueError(
                f"mean and scale must be numbers, or one for each of the {len(mu)} units, and scale above 0."
            )
        mean, scale = mean.expand_as(mu), scale.expand_as(mu)
        moved = {"W": scale[:, None] * W, "b": b - W.T @ (mean / (scale * log_var.exp()))}
        moved |= {"mu": mean + scale * mu, "log_var": log_var + 2 * scale.log()}
        moved |= self.contrasts.to(W).mapped(lambda centre: mean + scale * centre).tensors()
        moved |= self.censoring.to(W).mapped(lambda limit: mean + scale * limit).tensors()
        parameters = {name: x.to(self.W.dtype) for name, x in moved.items()}
        return self.from_parameters(parameters, "The rescaled machine").to(self.W.device)

    @property
    def var(self) -> Tensor:
        """σ² (N,)."""
        return self.log_var.exp()

    def extra_repr(self) -> str:
        """The sizes, for PyTorch's own representation of a module."""
        more = f", n_contrasts={self.contrasts.n}" if self.contrasts.n > 1 else ""
        return f"n_visible={self.n_visible}, n_hidden={self.n_hidden}{more}"

    def _repr_html_(self) -> str:
        """Sizes, variances and device, for notebooks."""
        low, high = (float(x) for x in self.var.detach().aminmax())
        rows = {
            "Visible units": f"{self.n_visible:,}",
            "Hidden units": f"{self.n_hidden:,}",
            "Parameters": f"{sum(p.numel() for p in self.parameters()):,}",
            "Variances σ²": f"{low:.3g} to {high:.3g}",
            "Numbers": f"{self.W.dtype} on {self.W.device}".removeprefix("torch."),
        }
        rows |= {"Contrasts": str(self.contrasts.n)} if self.contrasts.n > 1 else {}
        rows |= {"Censored units": f"{self.censoring.n:,}"} if self.censoring.n else {}
        return facts("Gaussian-Bernoulli RBM", rows)

    def freeze(self, precision: Precision = "highest") -> Energy:
        """A copy of the energy at the present parameters, without gradients: what samplers move under."""
        W, b, mu = (memory.clone(p) for p in (self.W, self.b, self.mu))
        return Energy(W, b, mu, self.var.detach(), precision)

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h) (Eq. 1) of v (..., N) and h (..., M), per sample: (...). Differentiable."""
        energy = self._live(v, h)
        return self.contrasts.free_energy(v, lambda u: energy.energy(u, h))

    def free_energy(self, v: Tensor) -> Tensor:
        """F(v) = −log Σ_h exp(−E(v, h)) (Eq. 5), per sample: (..., N) -> (...). Differentiable."""
        return self.contrasts.free_energy(v, self._live(v).free_energy)

    def log_prob(self, v: Tensor, log_z: SupportsFloat) -> Tensor:
        """log p(v) = −F(v) − log Z in nats, per sample: (..., N) -> (...). Differentiable but for ``log_z``.

        ``log_z`` is what `grbm.evaluate.exact.log_z` returns, for up to 36 hidden units, or that of
        `grbm.evaluate.ais.log_z`. Of a censored model it is the density of
        latent values; `grbm.evaluate.exact.log_prob` is that of measurements.
        """
        return -self.free_energy(v) - float(log_z)

    def hidden_logits(self, v: Tensor) -> Tensor:
        """Log-odds of h = 1 given v (Eq. 4): (..., N) -> (..., M). Differentiable."""
        energy = self._live(v)
        return self.contrasts.log_odds(v, energy.free_energy, energy.hidden_logits)

    def visible_mean(self, h: Tensor) -> Tensor:
        """Mean of p(v | h) (Eq. 3): (..., M) -> (..., N). Differentiable."""
        mean, contrasts = self._live(h=h).visible_mean(h), self.contrasts
        return contrasts.seen(mean, (contrasts.log_weights + contrasts.log_scales).exp().sum())

    def reconstruction(self, v: Tensor) -> Tensor:
        """The mean of v given p(h | v), at v's own contrast: (..., N) -> (..., N). Differentiable."""
        energy, contrasts = self._live(v), self.contrasts
        return contrasts.mean(
            v,
            energy.free_energy,
            lambda u, s: contrasts.seen(energy.visible_mean(energy.hidden_logits(u).sigmoid()), s),
        )

    def energy_grad(self, v: Tensor, h: Tensor) -> Tensor:
        """∂E/∂v at fixed h: (..., N)."""
        energy, contrasts = self._live(v, h), self.contrasts
        return contrasts.mean(
            v, lambda u: energy.energy(u, h), lambda u, s: energy.energy_grad(u, h) / contrasts.stretch(s)
        )

    def free_energy_grad(self, v: Tensor) -> Tensor:
        """∂F/∂v (Eq. 21): (..., N)."""
        energy, contrasts = self._live(v), self.contrasts
        return contrasts.mean(v, energy.free_energy, lambda u, s: energy.free_energy_grad(u) / contrasts.stretch(s))

    def forward(self, v: Tensor) -> Tensor:
        """Hidden probabilities p(h = 1 | v): the binary code's mean, (..., N) -> (..., M)."""
        energy = self._live(v)
        return self.contrasts.mean(v, energy.free_energy, lambda u, s: energy.hidden_logits(u).sigmoid())

    def contrast(self, v: Tensor) -> Tensor:
        """p(k | v), which of the K contrasts (``contrasts.log_scales``) rows have: (..., N) -> (..., K).

        Differentiable. Of a machine of one contrast it is 1.
        """
        return self.contrasts.log_joint(v, self._live(v).free_energy).softmax(-1)

    @torch.no_grad()
    def at_unit_contrast(self, v: Tensor, rng: Rng) -> Tensor:
        """Rows v (n, N) as they are at unit contrast, theirs drawn from p(k | v): what chains and learning see."""
        energy = Energy(self.W.detach(), self.b.detach(), self.mu.detach(), self.var)
        return self.contrasts.removed(v, energy.free_energy, rng)

    @torch.no_grad()
    def at_any_contrast(self, v: Tensor, rng: Rng) -> Tensor:
        """States (..., C, N) of chains as draws of the model: at contrasts of their own, and within the limits."""
        return self.censoring.recorded(self.contrasts.applied(v, rng))

    def _live(self, v: Tensor | None = None, h: Tensor | None = None) -> Energy:
        """The energy with its gradients, for units v (..., N) and h (..., M); raises ValueError for other sizes."""
        for x, size, which in ((v, self.n_visible, "visible"), (h, self.n_hidden, "hidden")):
            if x is not None and x.shape[-1:] != (size,):
                raise ValueError(f"The last axis must hold the {size} {which} units, got shape {tuple(x.shape)}.")
        return Energy(self.W, self.b, self.mu, self.var)
