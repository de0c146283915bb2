"""`Frame`: coordinates of a model, with limits of the columns, and Gaussian, mixture and contrasts of the units."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grbm.data.bounds import UNBOUNDED, Bounds
from grbm.data.grid import CONTINUOUS, Grid
from grbm.data.transforms import Elementwise, Transform, Whitening
from grbm.data.weighting import mean_and_error
from grbm.model import Base, censoring, contrasts
from grbm.model.censoring import UNCENSORED, Censoring, Interval
from grbm.model.contrasts import UNIT, Contrasts
from grbm.model.reference import Reference
from grbm.samplers import GlobalMoves

REFERENCE = ("weights", "means", "factors")


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates of a model, and what is known of the data in them: a Gaussian, a mixture, contrasts.

    The ``base`` is a Gaussian with independent units, where tempered paths start; in whitened units it has the data's
    covariance. The ``reference`` is the mixture of Gaussians that describes whitened data best: chains jump by its
    draws, and log Z is bridged from it. Both are of unit contrast.
    """

    transform: Transform  # from the columns of the data to the units of the machine
    base: Base
    reference: Reference | None = None
    contrasts: Contrasts = UNIT  # scales at which a machine begins
    censoring: Censoring = UNCENSORED  # limits of the columns (N,), which then have units of their own
    grid: Grid = CONTINUOUS  # steps of coarse columns, of which learning sees cells
    bounds: Bounds = UNBOUNDED  # of columns that learning sees on a scale without bounds; they are not coarse

    @property
    def is_scaled(self) -> Tensor:
        """(N,) bool, or (1,): columns that learning sees on another scale, by their bounds or as normal scores."""
        return self.bounds.is_bounded | self.grid.is_scored

    def inward(self, x: Tensor) -> Tensor:
        """Rows y (..., N) that learning sees of rows x, at places of their cells; NaN stays.

        Raises UserError for numbers at bounds or beyond.
        """
        return self.grid.inward(self.bounds.inward(x))

    def known(self, x: Tensor) -> Tensor:
        """The same of rows x (n, N), NaN where x lies at bounds or beyond."""
        return self.grid.inward(self.bounds.known(x))

    def _ends_inward(self, x: Tensor) -> Tensor:
        return self.grid.inward(self.bounds.ends_inward(x))

    def placed(self, y: Tensor) -> Tensor:
        """Rows x (..., N) of rows y that learning sees: at places of their cells, not numbers that occur."""
        return self.grid.outward(self.bounds.outward(y))

    @property
    def limits(self) -> Censoring:
        """Limits of the units (K,)."""
        return self.inner.censoring.mapped(lambda limit: self.transform.exactly(limit[None])[0])

    def intervals(self, x: Tensor, width: float = 0.0) -> Interval:
        """Intervals of the latent values of rows x (n, N), in units (n, K), float64 (`Censoring.interval`).

        Where x is NaN the interval has no ends. Raises ValueError for NaN where units are not columns.
        """
        self.bounds.refuse(x)
        low, high = self.censoring.interval(x.double(), width)
        z = self.transform.exactly(self._ends_inward(low))
        known = Interval(z, z if high is low else self.transform.exactly(self._ends_inward(high)))
        missing = self.transform.exactly(x).isnan()
        if not missing.any():
            return known
        if self.is_whitened:
            raise ValueError("Whitened units of rows with gaps have no intervals.")
        return Interval(known.low.masked_fill(missing, -torch.inf), known.high.masked_fill(missing, torch.inf))

    def log_det(self, within: Interval) -> Tensor | float:
        """log |dz/dx| of the columns that are known, of rows that are intervals of units (n, K)."""
        if not within.is_open.any():
            return self.transform.log_det
        scale = self.transform.scale[self.transform.kept]  # intervals go with units that are columns
        return -((~within.is_open).double() @ scale.log())

    def columns(self, z: Tensor) -> Tensor:
        """Transform rows z (n, K) of units to rows (n, N) of the data, float64.

        They are within the bounds, cut at the limits, and in the steps of coarse columns.

        A unit that is at its limit in float32 gives exactly the limit.
        """
        x = self.outward(self.transform.inverse(z))
        if self.censoring is UNCENSORED:
            return x
        at = self.limits.to(torch.zeros(1)).interval(z.float())
        low, high = (self.transform.columns_of(end.isinf().double()) > 0 for end in at)
        return torch.where(low, self.censoring.low, torch.where(high, self.censoring.high, x))

    def with_columns(self, grid: Grid, bounds: Bounds, limits: Censoring = UNCENSORED) -> "Frame":
        """The frame of rows that are to be seen `as_learned`, where this is the one of rows that are; see `inner`.

        Columns with bounds have the ``limits`` (N,), of the rows before.
        """
        if bounds is UNBOUNDED or self.censoring is UNCENSORED:
            return replace(self, grid=grid, bounds=bounds)
        low, high = (torch.where(bounds.is_bounded, *ends) for ends in zip(limits, self.censoring, strict=True))
        has_limits = bool(low.isfinite().any() or high.isfinite().any())
        return replace(self, grid=grid, bounds=bounds, censoring=Censoring(low, high) if has_limits else UNCENSORED)

    def as_learned(self, x: Tensor, seed: int) -> Tensor:
        """Rows x (n, N) of the data as learning sees them, before the transform: in their cells, without bounds."""
        return self.inward(self.grid.spread(x, seed))

    @property
    def inner(self) -> "Frame":
        """The frame of rows `as_learned`, which has neither steps nor bounds."""
        limits = self.censoring.mapped(self._ends_inward)
        return replace(self, grid=CONTINUOUS, bounds=UNBOUNDED, censoring=limits)

    def outward(self, y: Tensor) -> Tensor:
        """Rows x (..., N) of the data, float64, of rows y as learning sees them."""
        x = self.grid.rounded(self.placed(y))
        if self.bounds is UNBOUNDED or self.censoring is UNCENSORED:
            return x
        low, high = self.inner.censoring  # which give the limits themselves, without rounding
        return torch.where(y <= low, self.censoring.low, torch.where(y >= high, self.censoring.high, x))

    def breaks(self, x: Tensor) -> Tensor:
        """Mark numbers of rows x (n, N) at bounds or beyond, or against what held for all rows learned from: bool."""
        return self.bounds.breaks(x) | self.transform.breaks(self.inward(self.bounds.moved_inside(x)))

    def log_slope(self, x: Tensor) -> Tensor:
        """log |dy/dx| of rows x (n, N) and what learning sees of them, y: (n,) float64, of values with a density."""
        slopes = (self.bounds.log_slopes(x) + self.grid.log_slopes(x)).masked_fill(
            self.censoring.interval(x.double()).is_open, 0.0
        )
        return slopes[..., self.transform.kept].sum(-1)

    def mean_log_det(self, y: Tensor, weights: Tensor | None = None) -> float:
        """Mean of log |dz/dx| over rows y (n, N) as learning sees them, which count by their ``weights`` (n,).

        Of numbers that are missing (NaN) the transform alone counts.
        """
        if not self.is_scaled.any() or not len(y):
            return self.transform.log_det
        slopes = self.log_slope(self.placed(y.double()))
        return self.transform.log_det + mean_and_error(slopes, weights)[0]

    @property
    def is_whitened(self) -> bool:
        """True if units are linear combinations of columns, False if each unit is a column."""
        return isinstance(self.transform, Whitening)

    def jumps(self) -> GlobalMoves | None:
        """Chains that jump by draws of what describes the data; None without a reference."""
        return None if self.reference is None else GlobalMoves(self.reference.widened(self.base))

    @property
    def constant(self) -> list[int]:
        """Columns that do not vary."""
        return self.transform.constant.nonzero()[:, 0].tolist()

    @property
    def collinear(self) -> list[int]:
        """Columns that are linear functions of others."""
        return (~self.transform.kept & ~self.transform.constant).nonzero()[:, 0].tolist()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in files."""
        found = self.transform.tensors() | {"base_mean": self.base.mean, "base_var": self.base.var}
        if self.reference is not None:
            found |= {f"reference_{name}": getattr(self.reference, name) for name in REFERENCE}
        found |= self.contrasts.tensors() | self.censoring.tensors()
        return found | self.grid.tensors() | self.bounds.tensors()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Frame":
        """Build a frame from the result of `tensors`; raise ValueError if a tensor is missing or damaged.

        Other names are ignored.
        """
        known = {name: x for name, x in tensors.items() if name in NAMES or name.startswith("contrast_")}
        if any(not x.is_floating_point() or not x.isfinite().all() for k, x in known.items() if k != "columns"):
            raise ValueError("a frame holds finite numbers")
        is_white = "to_z" in known
        _require({"mean", "scale", "base_mean", "base_var"} <= known.keys(), "frame")
        _require(known.keys() & WHITE == (WHITE if is_white else set()), "whitening")
        _require(known.keys() & MIXTURE in (set(), MIXTURE), "reference")
        N = known["mean"].numel()
        columns = known.get("columns", torch.arange(N))  # none are named where all have a unit
        K = known["to_z"].shape[-1] if is_white else columns.numel()
        n = known["reference_weights"].numel() if known.keys() >= MIXTURE else None
        shapes: dict[str, tuple[int | None, ...]] = {"mean": (N,), "scale": (N,), "columns": (K,), "digits": (N,)}
        shapes |= {"to_z": (N, K), "to_x": (K, N), "base_mean": (K,), "base_var": (K,)}
        shapes |= {"reference_weights": (n,), "reference_means": (n, K), "reference_factors": (n, K, K)}
        for name in shapes.keys() & known.keys():
            _require(known[name].shape == shapes[name] and known[name].numel() > 0, name)
        for name in ("scale", "base_var"):
            _require(bool((known[name] > 0).all()), name)
        mean, scale = known["mean"].double(), known["scale"].double()
        if is_white:
            to_z, to_x, digits = (known[name].double() for name in ("to_z", "to_x", "digits"))
            _require(torch.allclose(to_x @ to_z, torch.eye(K, dtype=torch.float64), atol=1e-4), "whitening")
            transform: Transform = Whitening(mean, scale, to_z, to_x, digits)
        else:
            _require(columns.dtype == torch.int64 and bool(torch.isin(columns, torch.arange(N)).all()), "columns")
            transform = Elementwise(mean, scale, columns)
        limits = censoring.from_tensors(dict(tensors), N, "the frame")
        _require(limits is UNCENSORED or not is_white, "limits")
        reference = None if n is None else Reference(*(known[f"reference_{name}"] for name in REFERENCE))
        if reference is not None:
            weights, factors = reference.weights, reference.factors
            _require(bool((weights >= 0).all()) and abs(float(weights.sum()) - 1) < 1e-3, "reference")
            _require(bool((factors.diagonal(dim1=1, dim2=2) > 0).all()), "reference")
            _require(torch.equal(factors, factors.tril()), "reference")
        base = Base(known["base_mean"], known["base_var"])
        scales = contrasts.from_tensors(dict(known), K, "the frame")
        grid, bounds = Grid.from_tensors(dict(tensors), N), Bounds.from_tensors(dict(tensors), N)
        return cls(transform, base, reference, scales, limits, grid, bounds)


WHITE, MIXTURE = {"to_z", "to_x", "digits"}, {f"reference_{name}" for name in REFERENCE}
NAMES = {"mean", "scale", "columns", "base_mean", "base_var"} | WHITE | MIXTURE


def _require(is_sound: bool, what: str) -> None:
    if not is_sound:
        raise ValueError(f"its {what} is not whole")
