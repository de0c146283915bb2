"""The coordinates in which the estimator's machine works: features whitened, standardised or as they are."""

from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from grbm.contrasts import NAMES, from_tensors
from grbm.data.standardise import Standardizer
from grbm.data.tables import nothing_varies
from grbm.data.whitening import Whitened, suits_whitening, whiten
from grbm.model import GRBM, Base
from grbm.reference import Reference

FEWEST_ROWS = 20

Array = np.ndarray[Any, Any]
Units = Literal["whitened", "standardised", "features"]


class InFeatures(NamedTuple):
    """A machine's parameters in the units of the features, float64."""

    components: Array  # (M, n_features)
    intercept: Array  # (n_features,)
    variances: Array  # (n_features,), of each feature given the hidden units


def units_for(X: Array, whiten: bool | str) -> Units:
    """What a machine of rows X (n, N) works in, where the user said ``whiten``."""
    if whiten != "auto":
        return "whitened" if whiten else "features"
    return "whitened" if len(X) >= FEWEST_ROWS and suits_whitening(X) else "standardised"


class Coordinates:
    """Features to units of the machine and back; of a `Whitened` table where it is one, else by column."""

    def __init__(self, scale: Standardizer, whitened: Whitened | None = None) -> None:
        self.scale, self.whitened = scale, whitened

    @classmethod
    def find(cls, X: Array, units: Units, *, fine: bool, n_contrasts: int | None = None, seed: int) -> Self:
        """Of the rows to learn from; ``fine`` and ``n_contrasts`` as in `whiten`."""
        if units == "standardised":
            scale = Standardizer.fit(torch.from_numpy(X).double(), "pixel")
            if not scale.n_units:
                raise nothing_varies(len(X))
            return cls(scale)
        if units == "features":
            n = X.shape[1]
            return cls(Standardizer(torch.zeros(n).double(), torch.ones(n).double()))
        whitened = whiten(X.astype(np.float64), fine=fine, n_contrasts=n_contrasts, seed=seed)
        return cls(whitened.scale, whitened)

    @property
    def units(self) -> Units:
        """What the machine works in."""
        if self.whitened is not None:
            return "whitened"
        return "features" if (self.scale.mean == 0).all() and (self.scale.scale == 1).all() else "standardised"

    def to_units(self, X: Array) -> Tensor:
        """(n, n_features) -> (n, K), float64."""
        return self.scale.exactly(torch.tensor(X, dtype=torch.float64))

    def to_features(self, z: Tensor) -> Array:
        """(n, K) -> (n, n_features), float64."""
        found: Array = self.scale.inverse(z.detach().cpu()).numpy()
        return found

    def in_features(self, model: GRBM) -> InFeatures:
        """What the machine's parameters are in the units of the features."""
        W, mu, var = (x.detach().cpu().double() for x in (model.W, model.mu, model.var))
        back = self.scale.to_x
        if back is None:
            back = torch.eye(self.scale.n_columns, dtype=torch.float64)[self.scale.kept]
        back = back * self.scale.scale  # (K, n_features)
        return InFeatures((W.T @ back).numpy(), self.to_features(mu[None])[0], (var @ back.square()).numpy())

    def state(self) -> dict[str, Any]:
        """As arrays and tuples alone, which joblib, pickle and skops keep."""
        kept: dict[str, Any] = {n: x.numpy() for n, x in self.scale._asdict().items() if x is not None}
        if self.whitened is not None:
            q, base = self.whitened.reference, self.whitened.base
            kept |= {"weights": q.weights.numpy(), "means": q.means.numpy(), "factors": q.factors.numpy()}
            kept |= {"base_mean": base.mean.numpy(), "base_var": base.var.numpy()}
            kept |= {"constant": list(self.whitened.constant), "collinear": list(self.whitened.collinear)}
            kept |= {name: x.numpy() for name, x in self.whitened.contrasts.tensors().items()}
        return kept

    @classmethod
    def from_state(cls, kept: dict[str, Any]) -> Self:
        """What `state` gave."""
        scale = Standardizer(**{n: torch.tensor(kept[n]) for n in Standardizer._fields if n in kept})
        if "weights" not in kept:
            return cls(scale)
        q = Reference(*(torch.tensor(kept[n]) for n in ("weights", "means", "factors")))
        base = Base(torch.tensor(kept["base_mean"]), torch.tensor(kept["base_var"]))
        tensors = {n: torch.tensor(kept[n]) for n in NAMES if n in kept}
        contrasts = from_tensors(tensors, len(base.mean), "The estimator")
        return cls(scale, Whitened(scale, base, q, tuple(kept["constant"]), tuple(kept["collinear"]), contrasts))
