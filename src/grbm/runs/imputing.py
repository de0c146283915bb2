"""Data with gaps or noise, restored by a trained run: in the units of its data."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from grbm.core.devices import require_memory
from grbm.core.errors import UserError
from grbm.runs.encoding import rows_to_encode
from grbm.runs.folder import Run
from grbm.runs.sampling import on_device


def rows_with_gaps(run: Run, path: Path, key: str | None, note: Callable[[str], None]) -> np.ndarray:
    """The array of a file (n, N), float64, NaN where nothing is known; UserError where it does not fit the run."""
    rows = rows_to_encode(run, str(path), note, key)
    array: np.ndarray = rows[slice(None)].double().numpy()
    wrong = run.transform.scaled(torch.from_numpy(array)).float().isinf()
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise UserError(f"Row {row}, column {column} of {path} is infinite, or too large; NaN marks what is missing.")
    return array


def impute_rows(
    run: Run,
    rows: np.ndarray,
    *,
    noise_std: float = 0.0,
    n_steps: int = 200,
    n_chains: int = 4,
    n_replicas: int | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations of what ``rows`` (n, N) would be without gaps, and without noise of deviation ``noise_std``.

    Numbers that are known and free of noise are given back as they are, with deviation 0.
    """
    here = on_device(run)
    size = 12.0 * n_chains * (n_replicas or 1) * len(rows) * (run.model.n_visible + run.model.n_hidden)
    require_memory(size, f"Filling in {len(rows):,} rows with {n_chains:,} chains each", "use fewer chains, or rows")
    try:
        found = here.impute(
            torch.from_numpy(rows), noise_std, n_steps=n_steps, n_chains=n_chains, n_replicas=n_replicas, seed=seed
        )
    except ValueError as error:
        option = f"--noise-std {noise_std:g}" if run.model.censoring.n else f"--replicas {n_replicas}"
        raise UserError(f"{option}: {error}") from error
    return found.mean.numpy(), found.std.numpy()
