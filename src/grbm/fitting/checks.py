"""Checks of the estimator's tables; warnings at the line of whoever called."""

import sys
import warnings
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from grbm.core.errors import ScaleWarning
from grbm.data.sentinels import sentinels
from grbm.data.weighting import COPIES, MOST, checked

Array = np.ndarray[Any, Any]


def check_scale(X: Array, names: Array | None, *, whole: bool = True) -> None:
    """Say so where the features are not standardised, as far as these rows tell: few may vary little by chance."""
    with np.errstate(all="ignore"):
        mean, std = X.mean(0, dtype=np.float64), X.std(0, dtype=np.float64)
    varies = std > 1e-7 * np.abs(mean)
    wrong = (np.abs(mean) > 4) | (varies & ((std > 4) | (whole & (std < 0.1))))
    if wrong.any():
        spread = np.where(varies, np.maximum(std, 0.1 / (std + 1e-300)), 0)
        worst = int(np.where(wrong, np.maximum(np.abs(mean), spread), 0).argmax())
        which = f"feature {worst}" if names is None else f"feature {worst} ({names[worst]!r})"
        warn_user(
            f"{int(wrong.sum())} of {X.shape[1]} features are far from standardised; {which} has mean "
            f"{mean[worst]:.3g} and standard deviation {std[worst]:.3g}. GaussianBernoulliRBM learns from features of "
            f"mean 0 and deviation 1: put sklearn.preprocessing.StandardScaler before it in a pipeline.",
            ScaleWarning,
        )


def check_distance(X: Array, mean: Array, var: Array) -> None:
    """Say so where rows lie so much farther out than those learned that they must have other units."""
    with np.errstate(all="ignore"):
        squares = np.square(X.astype(np.float64) - mean) / var
        known = ~np.isnan(X) & (var > 0)  # where nothing varied `score_samples` tells
        far = float(np.sqrt(np.mean(squares, where=known))) if known.any() else 0.0
    if far > 10:
        warn_user(
            f"These rows lie {far:.0f} times as far from the training mean as those learned; are they in the same "
            "units?",
            ScaleWarning,
        )


def warn_user(message: str, category: type[Warning]) -> None:
    """A warning at the user's own line, however many lines of this library and of scikit-learn's lie between."""
    frame, level, between = sys._getframe(1), 2, ("grbm", "sklearn", "joblib")
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").split(".")[0] in between:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def as_numbers(X: Any) -> Any:
    """X with NaN where an array is masked; raises ValueError for columns that are no real numbers, by name."""
    if isinstance(X, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(X), np.nan, X.data) if np.ma.is_masked(X) else X.data
    if isinstance(X, np.ndarray) and np.iscomplexobj(X):
        raise ValueError("Complex data not supported: give their real and imaginary parts as columns of their own.")
    for name, column in X.items() if hasattr(X, "items") and hasattr(X, "dtypes") else ():
        kind = getattr(column.dtype, "kind", "O")
        if kind in "mM":
            raise ValueError(f"Column {name!r} holds {column.dtype}: make numbers of it, such as seconds.")
        if kind not in "buif":
            try:
                np.asarray(column, dtype=np.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"Column {name!r} holds {column.dtype}, which are no numbers ({error}); leave it out, or encode it "
                    f"(sklearn.preprocessing.OneHotEncoder)."
                ) from error
    return X


def warn_of_sentinels(X: Array, names: Array | None) -> None:
    """Say so where a number may stand for missing (`grbm.data.sentinels`)."""
    for found in sentinels(X):
        warn_user(found.sentence([] if names is None else list(names)), UserWarning)


def weights_of(sample_weight: Any, X: Array) -> Tensor:
    """Weights (n,) float64 of the rows X. Raises ValueError for negative or missing ones, and if all are 0."""
    found = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return checked(found, len(X), "sample_weight")


def refuse_many(weights: Tensor) -> None:
    """Raise ValueError for weights (n,) of which partial_fit would make millions of rows."""
    if not weights.sum() <= max(MOST, COPIES * len(weights)):
        raise ValueError(
            f"sample_weight adds up to {float(weights.sum()):.3g} rows, all of which partial_fit would learn from; "
            f"divide it, such as by its mean."
        )


def refuse_gaps(X: Array, advice: str) -> None:
    """Raise ValueError for NaN, with what to do about it."""
    if np.isnan(X).any():
        raise ValueError(f"Input X contains NaN. {advice}")


def refuse_datasets(X: Any) -> None:
    """Raise TypeError for a data set of PyTorch, with how to make an array of it."""
    from torch.utils.data import DataLoader, Dataset

    if isinstance(X, DataLoader | Dataset):
        raise TypeError(
            "GaussianBernoulliRBM takes an array (n_samples, n_features); make one of a Dataset by torch.stack([x for "
            "x, *_ in dataset]).flatten(1), or train with grbm.fit, which takes a Dataset or DataLoader as it is."
        )
