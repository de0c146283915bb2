"""Made tables of more than forty columns: independent, of factors, of clusters, of counts, spectra of chemicals."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
HELD_OUT = 2000
NAMES = (
    "independent-60",
    "factors-60",
    "half-rank-60",
    "clusters-60",
    "counts-60",
    "two-valued-60",
    "genes-100",
    "genes-300",
    "spectra-500",
)


def wide(name: str) -> tuple[Array, Array]:
    """Rows to learn from (n, N) and 2,000 held out; N is the number in the name."""
    kind, _, number = name.rpartition("-")
    N, rng = int(number), np.random.default_rng(5)
    n_rows = {"half-rank": 500, "genes": 1500, "spectra": 200}.get(kind, 1000)
    n = n_rows + HELD_OUT
    if kind == "independent":
        x = rng.normal(size=(n, N))
    elif kind == "factors":  # five weak ones
        x = rng.normal(size=(n, 5)) @ (0.35 * rng.normal(size=(5, N))) + rng.normal(size=(n, N))
    elif kind == "half-rank":  # half of the directions vary little
        root = rng.normal(size=(N // 2, N))
        x = rng.normal(size=(n, N // 2)) @ root + 0.5 * rng.normal(size=(n, N))
    elif kind == "clusters":  # eight, five deviations apart
        x = 0.5 * rng.normal(size=(8, N))[rng.integers(8, size=n)] + rng.normal(size=(n, N))
    elif kind == "counts":
        rate = np.exp(rng.normal(size=(n, 5)) @ (0.5 * rng.normal(size=(5, N))) + 2)
        x = rng.poisson(rate).astype(float)
    elif kind == "two-valued":  # a quarter of the columns
        x = rng.normal(size=(n, 5)) @ (0.5 * rng.normal(size=(5, N))) + 0.5 * rng.normal(size=(n, N))
        x[:, : N // 4] = x[:, : N // 4] > 0
    elif kind == "genes":  # twenty factors of unequal strength and eight clusters, each column in a unit of its own
        root = 0.5 * rng.normal(size=(20, N)) * rng.gamma(1, 1, size=(20, 1))
        centres, shares = rng.normal(size=(8, N)), rng.dirichlet(np.full(8, 3.0))
        x = centres[rng.choice(8, n, p=shares)] + rng.normal(size=(n, 20)) @ root + rng.normal(size=(n, N))
        x = x * np.exp(2 * rng.normal(size=N)) + 10 * rng.normal(size=N)
    elif kind == "spectra":  # twelve bands at amounts of their own, and a little noise
        place, width, at = rng.random(12), 0.03 + 0.2 * rng.random(12), np.linspace(0, 1, N)
        bands = np.exp(-0.5 * ((at - place[:, None]) / width[:, None]) ** 2)
        x = rng.gamma(2, 1, size=(n, 12)) @ bands + 0.003 * rng.normal(size=(n, N))
    else:
        raise ValueError(name)
    return x[:n_rows], x[n_rows:]
