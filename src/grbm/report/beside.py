"""A run's held-out likelihood beside those of simpler models on the same rows."""

import torch

from grbm.data.loading import Dataset
from grbm.data.mixtures import Mixture
from grbm.data.tables import spread
from grbm.data.whitening import WIDEST_TABLE, independent
from grbm.evaluate import exact
from grbm.evaluate.baselines import Comparison, baselines, compare
from grbm.evaluate.mixtures import model_grid
from grbm.fitting.density import LogPartition
from grbm.model import GRBM
from grbm.runs import Run
from grbm.runs.sampling import on_device

WIDEST = 1024  # columns, above which one Gaussian's covariance takes too long
FEWEST = 10  # held-out rows that a comparison needs
MOST = 5000
METHODS = {  # of finding log Z, in words
    "exact": "enumeration",
    "quadrature": "quadrature",
    "reference": "bridged from the mixture that describes the data",
    "AIS": "annealing from both ends",
}


def log_z(run: Run, dataset: Dataset, *, n_steps: int, n_chains: int, seed: int = 0) -> LogPartition:
    """By quadrature in the plane, by enumeration, from the mixture that describes the data, or by annealing."""
    model = run.model
    grid = plane_grid(model, dataset.mixture)
    if grid is not None:
        return LogPartition(grid.log_z, 0.0, "quadrature", "Exact.", converged=True)
    seen = run.transform(dataset.train[spread(len(dataset.train), 10_000)])
    sizes = {} if run.frame.reference is not None else {"n_steps": n_steps, "n_chains": n_chains}
    return on_device(run).log_partition(seen=seen, seed=seed, **sizes)


def plane_grid(model: GRBM, mixture: Mixture | None) -> exact.Grid | None:
    """Quadrature in the plane; None elsewhere, or where the density is too sharp or wide for any grid."""
    if model.n_visible > 2 or mixture is None:
        return exact.plane(model)
    try:
        return model_grid(model, mixture)
    except ValueError:
        return None


@torch.no_grad()
def comparisons(run: Run, dataset: Dataset, known: LogPartition, *, seed: int = 0) -> list[Comparison]:
    """The model against each simpler one, on the held-out rows.

    None where those are fewer than ten, where columns are censored, or where the model has not left out constant and
    collinear ones.
    """
    n, width = len(dataset.test), run.transform.n_columns
    if n < FEWEST or width > WIDEST or len(dataset.train) < FEWEST or run.model.censoring.n:
        return []
    test = dataset.test[spread(n, MOST)]
    test = test[~run.transform.breaks(test).any(1)]
    if len(test) < FEWEST:
        return []
    train = dataset.train[spread(len(dataset.train), 10_000)]
    ours = run.fitted.log_prob(test, known.value)
    if not bool(ours.isfinite().all()):
        return []
    rows, kept = train.double().cpu().numpy(), run.transform.kept.numpy()
    if not run.frame.is_whitened and not (width <= WIDEST_TABLE and independent(rows[:, kept]).all()):
        return []  # the model's density is one of columns that simpler models must do without
    found = baselines(rows, test.double().cpu().numpy(), kept=kept, seed=seed)
    return [compare(ours.cpu().numpy(), known.error, baseline) for baseline in found]
