"""`grbm evaluate`: the numbers that a run's data allow, and its likelihood beside those of simpler models."""

import json
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from grbm.core.files import write_text
from grbm.core.randomness import seed_of
from grbm.core.streams import plain
from grbm.core.typed import is_kind, restore
from grbm.data.loading import Dataset
from grbm.data.tables import Table, spread
from grbm.data.weighting import effective, mean_and_error
from grbm.data.whitening import WIDEST_TABLE, independent
from grbm.evaluate import exact
from grbm.evaluate.baselines import Comparison, baselines, compare
from grbm.evaluate.mixtures import density_score, sample_score, spacing
from grbm.fitting.density import LogPartition, Score, bits_per_dimension
from grbm.report.words import METHODS, measured
from grbm.runs import EVALUATION, Run, model_digest
from grbm.runs.encoding import finite_parts
from grbm.runs.sampling import generate, on_device

WIDEST = 1024  # columns, above which a full-covariance Gaussian's covariance takes too long
WIDEST_QUICK = 200  # Maximum number of columns of a table that is scored without being asked.
QUICK_SAMPLES = 1000
FEWEST = 10  # held-out rows that a comparison needs
MOST = 5000
PARTS: tuple[Literal["train", "test"], ...] = "train", "test"


def evaluate(
    run: Run,
    *,
    n_samples: int = 10_000,
    seed: int = 1,
    dataset: Dataset | None = None,
    whole: bool = False,
    ais_steps: int = 1000,
    ais_chains: int = 500,
) -> dict[str, Any]:
    """Scores by name: densities in nats per sample, of the data in their own units.

    log Z is exact where n_hidden <= 36 or n_visible <= 2. Elsewhere log Z comes from chains: bridged from
    the mixture that describes whitened data (`grbm.evaluate.bridging`), or annealed both ways (`grbm.evaluate.ais`),
    with a standard error, the two ends, and a verdict on whether they agree. Simpler models are scored on the same
    held-out rows (`grbm.evaluate.baselines`). Of censored columns values at a limit have probabilities; rows have no
    free energy of their own, and simpler models no limits to be compared by.
    With ``whole`` it is that of all rows instead of at most 10,000, with standard errors, and images are also scored in
    bits per dimension (`grbm.fitting.density.Fitted.log_likelihood`).
    """
    dataset = dataset or run.load_data()
    model, scale, here = run.model, run.transform, on_device(run)
    scores: dict[str, Any] = {"n_visible": model.n_visible, "n_hidden": model.n_hidden, "model": model_digest(model)}
    # v itself, not conditional means, which lie where the free energy is lower than anywhere in a sample
    generated = generate(run, n_samples, seed=seed, sampling=replace(run.config.sampling, mean=False))
    scores["samples"] = n_samples
    grid = exact.plane(model, spacing(dataset.mixture))
    known = log_z(run, dataset, n_steps=ais_steps, n_chains=ais_chains, seed=seed)
    scores |= _of_log_z(known)
    if known.found is not None:
        scores |= {"log_z_lower": known.found.lower, "log_z_upper": known.found.upper}
        scores |= {"log_z_converged": known.found.converged, "log_z_verdict": known.found.verdict}
    scores["baselines"] = [found._asdict() for found in comparisons(run, dataset, known, seed=seed)]
    scores |= {"baselines_of": MOST} if len(dataset.test) > MOST else {}
    with torch.no_grad():
        for name in PARTS:
            rows, weights = getattr(dataset, name), dataset.weights_of(name)
            if len(rows) == 0:
                continue
            some, of_some = rows[:10_000], None if weights is None else weights[:10_000]
            scored = (rows, weights) if whole else (some, of_some)
            score = here.log_likelihood(scored[0], known.value, known.error, weights=scored[1])
            scores[f"without_density_{name}"] = score.n_without
            if score.n_rows == 0:
                continue
            is_whole = ~run.frame.breaks(some).any(1)
            z = scale(run.frame.as_learned(some[is_whole], seed))  # of coarse columns one place of their cells each
            of_some = None if of_some is None else of_some[is_whole]
            scores |= _with_error(f"log_likelihood_{name}", score) | ({f"rows_{name}": score.n_rows} if whole else {})
            if model.censoring.n:
                scores[f"scored_{name}"], scores[f"unsure_{name}"] = score.n_rows, score.n_unsure
            elif run.frame.grid.n or run.frame.bounds.n:
                scores[f"free_energy_{name}"] = mean_and_error(model.free_energy(z).double(), of_some)[0]
            else:
                scores[f"free_energy_{name}"] = -score.mean - known.value + scale.log_det
            errors = (z - model.reconstruction(z)).square().mean(1).double()
            scores[f"reconstruction_{name}"] = mean_and_error(errors, of_some)[0]
            if whole and (levels := dataset.levels) is not None:
                dequantised = here.log_likelihood(rows, known.value, known.error, levels=levels, seed=seed)
                scores |= _with_error(f"dequantised_{name}", dequantised)
                scores |= _with_error(f"bits_per_dimension_{name}", bits_per_dimension(dequantised, model.n_visible))
        if dataset.weights is not None:
            scores["weights"] = run.config.dataset.weights
            for name in PARTS:
                if (weights := dataset.weights_of(name)) is not None and len(weights):
                    scores[f"worth_{name}"] = effective(weights)
        if run.frame.grid.n:
            scores["coarse"] = run.frame.grid.n
        if run.frame.bounds.n:
            scores["bounded"] = run.frame.bounds.n
        if model.censoring.n:
            scores["censored"] = model.censoring.n
        else:
            z = scale(run.frame.as_learned(generated, seed))
            scores["free_energy_samples"] = float(model.free_energy(z).double().mean())
    if dataset.mixture is not None and grid is not None and run.config.dataset.standardise == "none":
        density = density_score(model, dataset.mixture, grid)
        drawn = sample_score(generated, dataset.mixture)
        scores |= {"kl_data_model": density.kl, "mode_mass": list(density.mode_mass)}
        scores |= {"within_3_deviations": drawn.within, "mode_share": list(drawn.mode_share)}
    return scores


def quick(run: Run, dataset: Dataset, *, seed: int = 1) -> dict[str, Any]:
    """Read the scores of the run's present weights; compute and write them first where that takes seconds.

    So it does for tables whose log Z is exact or bridged from a mixture. For other runs without scores the result is
    empty.
    """
    if (found := measured(run, EVALUATION)) or not _is_quick(run):
        return found
    found = evaluate(run, dataset=dataset, n_samples=QUICK_SAMPLES, seed=seed)
    write_text(run.folder / EVALUATION, json.dumps(found, indent=2) + "\n")
    return found


def _is_quick(run: Run) -> bool:
    model = run.model
    if run.image_shape is not None or model.censoring.n or run.transform.n_columns > WIDEST_QUICK:
        return False
    return run.frame.reference is not None or model.n_visible <= 2 or exact.is_enumerable(model)


def compared(scores: dict[str, Any]) -> list[Comparison]:
    """Comparisons with simpler models among ``scores``; empty where there are none."""
    rows = scores.get("baselines")
    return [restore(Comparison, row) for row in rows if is_kind(Comparison, row)] if isinstance(rows, list) else []


def score_rows(
    run: Run,
    rows: Table,
    where: str,
    own: Dataset | None = None,
    *,
    ais_steps: int = 1000,
    ais_chains: int = 500,
    seed: int = 1,
    weights: Tensor | None = None,
) -> dict[str, Any]:
    """The mean log-likelihood of other ``rows`` (n, N) than the run's own, with its error, as one number of ``where``.

    Rows count by their ``weights`` (n,).

    They are neither rows that the run learned from nor such as it held out, and nothing of it is kept. log Z that is
    annealed begins at the run's ``own`` data, where they are there. Of a row with gaps (NaN) the known values count.
    Raises UserError for infinite numbers.
    """
    gappy = torch.cat([x.isnan().any(1) for x in finite_parts(run, rows, gaps=True)])
    if own is None:
        complete = (~gappy).nonzero()[:, 0]
        own = Dataset(rows[complete], rows[:0])
    known = log_z(run, own, n_steps=ais_steps, n_chains=ais_chains, seed=seed)
    score = on_device(run).log_likelihood(rows, known.value, known.error, weights=weights)
    found = {"rows_of": where, "rows": score.n_rows, "without_density": score.n_without, "gaps": int(gappy.sum())}
    if gappy.any():
        found["unsure"] = score.n_unsure
    if weights is not None:
        found |= {"weights": run.config.dataset.weights, "worth": effective(weights)}
    if run.frame.grid.n:
        found["coarse"] = run.frame.grid.n
    if run.frame.bounds.n:
        found["bounded"] = run.frame.bounds.n
    if run.model.censoring.n:
        found |= {"censored": run.model.censoring.n, "unsure": score.n_unsure}
        some, limits = rows[spread(len(rows), 10_000)].double(), run.frame.censoring
        found["beyond"] = int(((some < limits.low.float()) | (some > limits.high.float())).sum())
    found |= {"log_likelihood": score.mean if score.n_rows else None, "log_likelihood_error": score.error}
    found |= _of_log_z(known)
    return found | ({} if known.found is None else {"log_z_converged": known.found.converged})


def dearer(run: Run) -> dict[str, Any]:
    """The scores in the run's folder that only ``whole`` gives, where they are of its weights."""
    before = measured(run, EVALUATION)
    if "rows_train" not in before:
        return {}
    kinds = ("log_likelihood", "dequantised", "bits_per_dimension", "rows_", "log_z", "without_density")
    kept = {name: x for name, x in before.items() if name.startswith(kinds)}
    if not all(is_kind(float | bool | str, x) for x in kept.values()):
        return {}
    return {name: plain(x) if isinstance(x, str) else x for name, x in kept.items()}


def _of_log_z(known: LogPartition) -> dict[str, Any]:
    return {"log_z": known.value, "log_z_error": known.error, "log_z_method": METHODS[known.method]}


def _with_error(name: str, score: Score) -> dict[str, float]:
    return {name: score.mean, f"{name}_error": score.error}


def log_z(run: Run, dataset: Dataset, *, n_steps: int, n_chains: int, seed: int = 0) -> LogPartition:
    """By quadrature in the plane, by enumeration, from the mixture that describes the data, or by annealing."""
    model = run.model
    grid = exact.plane(model, spacing(dataset.mixture))
    if grid is not None:
        return LogPartition(grid.log_z, 0.0, "quadrature", "Exact.", converged=True)
    rows = dataset.some("train", 10_000)
    rows = rows[~run.frame.bounds.breaks(rows).any(1)]
    seen = run.fitted.units(rows) if len(rows) else None
    sizes = {} if run.frame.reference is not None else {"n_steps": n_steps, "n_chains": n_chains}
    return on_device(run).log_partition(seen=seen, seed=seed, **sizes)


@torch.no_grad()
def comparisons(run: Run, dataset: Dataset, known: LogPartition, *, seed: int = 0) -> list[Comparison]:
    """The model against each simpler one, on the held-out rows.

    None where those are fewer than ten, where columns are censored, or where the model has not left out constant and
    collinear ones.
    """
    n, width = len(dataset.test), run.transform.n_columns
    if n < FEWEST or width > WIDEST or len(dataset.train) < FEWEST or run.model.censoring.n:
        return []
    numbers = spread(n, MOST)
    numbers = numbers[~run.frame.breaks(dataset.test[numbers]).any(1)]
    test, weights = dataset.test[numbers], dataset.weights_of("test")
    if weights is not None and effective(weights[numbers]) < FEWEST:
        return []
    if len(test) < FEWEST:
        return []
    # Rows as learning sees them: numbers that repeat, and bounds, would be the worse for simpler models.
    different = run.frame.as_learned(dataset.some("train", 10_000, copies=False), seed)
    train = run.frame.as_learned(dataset.some("train", 10_000), seed)
    test = run.frame.as_learned(test, seed_of(seed, "test"))
    ours = run.fitted.inner.log_prob(test, known.value)
    if not bool(ours.isfinite().all()):
        return []
    rows, kept = train.double().cpu().numpy(), run.transform.kept.numpy()
    if not run.frame.is_whitened and not (width <= WIDEST_TABLE and independent(rows[:, kept]).all()):
        return []  # the model's density is one of columns that simpler models must do without
    clusters = None if weights is None else different.double().cpu().numpy()
    found = baselines(rows, test.double().cpu().numpy(), kept=kept, clusters=clusters, seed=seed)
    count = None if weights is None else weights[numbers]
    return [compare(ours.cpu().numpy(), known.error, baseline, count) for baseline in found]
