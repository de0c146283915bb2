"""The state of training, and the diagnostics of an update."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from grbm.learning.guard import Guard
from grbm.learning.objectives import Adaptation, Negative
from grbm.learning.quasi_newton import Curvature, Drawn
from grbm.model import GRBM

KINDS = ("model", "average", "last_good", "curvature", "adaptation", "chains")  # of the tensors of a state


@dataclass
class TrainState:
    """Everything that an update reads and changes; all randomness follows from (seed, update).

    Parameters
    ----------
    model : GRBM
        It is learned in place.
    optimizer : torch.optim.Optimizer
        Of the model's parameters. Its rate is that of the first update; `fit` lets it fall to 0.
    seed : int
        Equal seeds give equal runs on the same device.
    update : int
        Updates made so far.

    Attributes
    ----------
    persistent : Tensor, optional
        Visible units of this process's persistent chains, (C, N), or (R, C, N) of replicas.
    average : GRBM, optional
        Exponential moving average of the parameters, with ``FitOptions(average_decay=...)``.
    """

    model: GRBM
    optimizer: torch.optim.Optimizer
    seed: int = 0
    update: int = 0
    persistent: Tensor | None = None
    average: GRBM | None = None
    adaptation: Adaptation = field(default_factory=Adaptation)  # of the sampler, such as its ladder
    guard: Guard = field(default_factory=Guard)  # the last good parameters
    curvature: Curvature | None = None  # of the last rounds of quasi-Newton steps
    drawn: Drawn | None = None  # for the next round, which would draw the same anew

    def settle(self) -> None:
        """Wait for the device, and raise DivergenceError if one of the last updates was broken."""
        self.guard.settle(self.model, self.update)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors but the optimizer's, by their names in files: "model.W", "average.W", "chains.v", ..."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
            "last_good": self.guard.last_good or {},
            "curvature": {} if self.curvature is None else self.curvature._asdict(),
            "adaptation": self.adaptation.state_dict,
            "chains": {} if self.persistent is None else {"v": self.persistent},
        }
        return {f"{kind}.{name}": x for kind, part in parts.items() for name, x in part.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned, on the model's device; other names are ignored.

        Raises ValueError for a tensor that does not fit the model, or is missing.
        """
        self.refuse_unfit(tensors)
        parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in KINDS}
        for name, x in tensors.items():
            kind, _, rest = name.partition(".")
            if kind in parts:
                parts[kind][rest] = x if rest == "ladder" else x.to(self.model.W.device)
        self.model.load_state_dict(parts["model"])
        self.average = copy.deepcopy(self.model) if parts["average"] else None
        if self.average is not None:
            self.average.load_state_dict(parts["average"])
        self.guard, self.adaptation = Guard(parts["last_good"] or None), Adaptation(parts["adaptation"])
        self.curvature = Curvature(**parts["curvature"]) if parts["curvature"] else None
        self.persistent, self.drawn = parts["chains"].get("v"), None

    def refuse_unfit(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError for a tensor that is missing, not shaped as the model asks, or a ladder out of order."""
        model = self.model.state_dict()
        like = model | {"var": model["log_var"]}
        for name, x in tensors.items():
            kind, _, rest = name.partition(".")
            match kind:
                case "model" | "average" | "last_good":
                    good = rest in model and (x.shape, x.dtype) == (model[rest].shape, model[rest].dtype)
                case "curvature":
                    n = sum(p.numel() for p in self.model.parameters())
                    good = rest in Curvature._fields and x.shape[1:] == (n,)
                case "adaptation":  # of a ladder, or of several models
                    good = x.ndim == 1 or (rest in ("W", "b", "mu", "var") and x.shape[1:] == like[rest].shape)
                    good = good and bool(x.isfinite().all()) and (rest != "ladder" or bool((x.diff() > 0).all()))
                case "chains":
                    good = rest == "v" and x.ndim in (2, 3) and x.shape[-1] == self.model.n_visible
                    good = good and x.dtype == model["W"].dtype
                case _:
                    good = True
            if not good:
                raise ValueError(f"{name} of shape {tuple(x.shape)} does not fit the model")
        for kind in ("model", "average", "last_good"):
            missing = [name for name in model if f"{kind}.{name}" not in tensors]
            if missing and (kind == "model" or len(missing) < len(model)):
                raise ValueError(f"{kind}.{missing[0]} is missing")


class StepMetrics(NamedTuple):
    """Diagnostics of one update, as tensors so that reading them is the caller's choice.

    Parameters
    ----------
    grad_norm : Tensor
        Norm of the gradient over all parameters, before clipping; ().
    data_mean_h : Tensor
        Mean of p(h = 1 | v) over the batch, (M,).
    accept_rate : Tensor, optional
        Mean acceptance of all chains, (); None where nothing can be rejected.
    swap_rate : Tensor, optional
        Mean acceptance of swaps of neighbouring replicas, (R − 1,).
    negative : Negative
        The negative phase: sums, and where this process's chains are.
    """

    grad_norm: Tensor
    data_mean_h: Tensor
    accept_rate: Tensor | None
    swap_rate: Tensor | None
    negative: Negative

    def __repr__(self) -> str:
        rate = None if self.accept_rate is None else round(float(self.accept_rate), 3)
        return f"StepMetrics(grad_norm={float(self.grad_norm):.3g}, accept_rate={rate}, ...)"
