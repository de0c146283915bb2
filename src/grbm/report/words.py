"""Sentences about a run: numbers with their errors, how training ended, how long it took, likelihoods."""

import math
import textwrap
from collections.abc import Iterator
from typing import Any

from grbm.core.typed import read_json
from grbm.runs import Run, model_digest

METHODS = {  # of finding log Z, in words
    "exact": "enumeration",
    "quadrature": "quadrature",
    "reference": "bridged from the mixture that describes the data",
    "AIS": "annealing from both ends",
}


def with_error(mean: float, error: float) -> str:
    """A number to the digits that its standard error allows: two of those that are uncertain."""
    decimals = max(0, 1 - math.floor(math.log10(error))) if 0 < error < math.inf else 4
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def measured(run: Run, name: str) -> dict[str, Any]:
    """Read the JSON file ``name`` in the run's folder; empty unless it describes the run's present weights."""
    try:
        content = read_json(run.folder / name)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("model") == model_digest(run.model) else {}


def duration(seconds: float) -> str:
    """A time as people say it."""
    minutes, hours = divmod(round(seconds), 60), divmod(round(seconds / 60), 60)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{minutes[0]} min {minutes[1]} s" if seconds < 3600 else f"{hours[0]} h {hours[1]} min"


def ending(run: Run) -> str:
    """How training ended, and how to go on where that is possible; empty where it finished."""
    go_on = f"; to go on: grbm resume {run.folder}" if run.status.ended == "running" else ""
    return f"{run.status}{go_on}"


def score_table(scores: dict[str, Any]) -> Iterator[str]:
    """The ``scores`` of `grbm.report.scores` as a table for people."""

    def shown(name: str) -> str:
        if scores.get(name) is None:
            return "–"
        error = scores.get(f"{name}_error")
        return with_error(scores[name], error) if error else f"{scores[name]:.4f}"

    rows = [
        (label, shown(f"{name}_train"), shown(f"{name}_test"))
        for name, label in (
            ("log_likelihood", "log-likelihood, nats per sample"),
            ("free_energy", "free energy, nats per sample"),
            ("reconstruction", "reconstruction error, mean square"),
        )
        if f"{name}_train" in scores
    ]
    if scores.get("log_z_converged") is False:
        yield f"  log Z has NOT converged: do not use these log-likelihoods.{_remedy(scores)}"
    yield f"  {'':<35}{'training':>18}{'held out':>18}"
    yield from (f"  {label:<35}{train:>18}{test:>18}" for label, train, test in rows)
    if "free_energy_samples" in scores:
        label = f"free energy of {scores['samples']:,} samples from noise"
        yield f"  {label:<41}{shown('free_energy_samples'):>12}"
    if "kl_data_model" in scores:
        masses, shares = (" ".join(f"{x:.3f}" for x in scores[name]) for name in ("mode_mass", "mode_share"))
        yield f"  {'KL(data || model), nats':<41}{scores['kl_data_model']:>12.4f}"
        yield f"  {'samples within 3 deviations of a mode':<41}{scores['within_3_deviations']:>12.1%}"
        yield f"  {'mass of each mode':<35}{masses:>18}"
        yield f"  {'share of the samples in each':<35}{shares:>18}"
    log_z = f"log Z {scores['log_z']:.3f}" + (f" ± {scores['log_z_error']:.2g}" if scores["log_z_error"] else "")
    yield f"  {log_z} nats ({scores['log_z_method']})"
    if "log_z_verdict" in scores:
        yield textwrap.fill(scores["log_z_verdict"], 100, initial_indent="  ", subsequent_indent="  ")
    yield from without_density(scores)
    yield from of_cells(scores)
    yield from at_limits(scores)
    yield from of_bounds(scores)
    yield from weighted(scores)
    yield from beside(scores)
    yield "Log-likelihoods are of the data in their own units; free energies and reconstructions in standardised units."


def _remedy(scores: dict[str, Any]) -> str:
    """Advice for a log Z that has not converged; empty unless it is annealed, since no option improves the others."""
    return " Raise --ais-steps or --ais-chains." if scores.get("log_z_method") == METHODS["AIS"] else ""


def of_cells(scores: dict[str, Any]) -> Iterator[str]:
    """Explain log-likelihoods of coarse columns."""
    if n := scores.get("coarse"):
        text = f"{n:,} columns have few different values (--dataset.coarse)"
        yield f"{text}: the density of a row is its mean over the cells of its values."


def of_bounds(scores: dict[str, Any]) -> Iterator[str]:
    """Explain log-likelihoods of columns with bounds."""
    if n := scores.get("bounded"):
        text = f"{n:,} columns have bounds (--dataset.bounds): densities are of the columns; distances to the bounds "
        text += "are learned by their logarithms"
        yield f"{text}, by simpler models too." if scores.get("baselines") else f"{text}."


FEW = 10  # Rows of equal weight below which an error is not to be trusted.


def weighted(scores: dict[str, Any]) -> Iterator[str]:
    """Say that means over rows are weighted, and what the rows are worth."""
    if scores.get("weights") is None:
        return
    rows = {"training rows": "worth_train", "held-out rows": "worth_test", "rows": "worth"}
    worth = {label: scores[name] for label, name in rows.items() if name in scores}
    said = " and ".join(f"the {label} have an effective sample size of {n:,.0f}" for label, n in worth.items())
    yield f"Means over rows are weighted by column {scores['weights']}: {said}."
    for label in (label for label, n in worth.items() if n < FEW):
        yield f"The effective sample size of the {label} is below {FEW}, so their error is not to be trusted."


def at_limits(scores: dict[str, Any]) -> Iterator[str]:
    """Explain log-likelihoods of censored columns, and warn of uncertain ones."""
    if "censored" not in scores:
        return
    text = f"{scores['censored']:,} columns are censored: a value inside the limits has a density, one at a limit the "
    text += "probability of lying there or beyond."
    if n := max(scores.get(f"scored_{name}", 0) for name in ("train", "test")):
        text += f" At most {n:,} rows of each part are scored, evenly spaced. Simpler models know no limits, so no "
        text += "comparison is shown."
    if scores.get("beyond"):
        text += f" {scores['beyond']:,} values lie beyond the limits, and count as at them."
    unsure = sum(scores.get(name, 0) for name in ("unsure", "unsure_train", "unsure_test"))
    if unsure:
        text += f" The annealed weights of {unsure:,} rows rest on fewer than 3 chains: their mean may be nats too low."
    yield textwrap.fill(text, 100, initial_indent="  ", subsequent_indent="  ")


def without_density(scores: dict[str, Any]) -> Iterator[str]:
    """How many rows have none, where there are such; the numbers are of the others."""
    for name, label in (("train", "training"), ("test", "held-out"), ("", "")):
        n = scores.get(f"without_density_{name}".rstrip("_"))
        if n:
            yield (
                f"  {n:,} {label + ' ' if label else ''}rows have no density and are left out: a column that is "
                f"constant, or a linear function of others, in the training rows has another value there"
                f"{', or one lies beyond its bounds' if scores.get('bounded') else ''}."
            )


def of_rows(scores: dict[str, Any]) -> Iterator[str]:
    """The ``scores`` of `grbm.report.scores.score_rows` for people."""
    if scores.get("log_z_converged") is False:
        yield f"  log Z has NOT converged: do not use this log-likelihood.{_remedy(scores)}"
    number = scores["log_likelihood"]
    shown = "none" if number is None else with_error(number, scores["log_likelihood_error"])
    yield f"Log-likelihood of the {scores['rows']:,} rows of {scores['rows_of']}: {shown} nats per sample"
    yield f"  (log Z {scores['log_z']:.3f} ± {scores['log_z_error']:.2g}, {scores['log_z_method']})."
    if n := scores["gaps"]:
        yield f"  {n:,} of them have gaps: their log-likelihood is of the values that are known."
        if scores["unsure"] and "censored" not in scores:
            yield f"  {scores['unsure']:,} of these are uncertain: their estimates may be nats too low."
    yield from without_density(scores)
    yield from of_cells(scores)
    yield from at_limits(scores)
    yield from of_bounds(scores)
    yield from weighted(scores)
    yield "These rows are not the data of the run. Nothing was written to the run."


def of_held_out(scores: dict[str, Any]) -> Iterator[str]:
    """The log-likelihood of held-out rows among ``scores``, beside those of simpler models; nothing where it is not."""
    if (mean := scores.get("log_likelihood_test")) is None:
        return
    shown = with_error(mean, scores["log_likelihood_test_error"])
    doubt = " (log Z has NOT converged: do not use it)" if scores.get("log_z_converged") is False else ""
    yield f"Log-likelihood of held-out rows: {shown} nats per row{doubt}"
    yield from beside(scores)


def beside(scores: dict[str, Any]) -> Iterator[str]:
    """Simpler models on the same held-out rows, and which is better."""
    rows = scores.get("baselines") or []
    if not rows:
        return
    places = ", each at one place of its cells" if scores.get("coarse") else ""
    some = f" ({scores['baselines_of']:,} of them)" if "baselines_of" in scores else ""
    yield f"Simpler models on the same held-out rows{some}{places}, nats per sample:"
    for row in rows:
        detail = f" ({row['detail']})" if row.get("detail") else ""
        yield (
            f"  {row['name']:<26}{with_error(row['mean'], row['error']):>18}   grbm minus "
            f"this {row['difference']:+.3g} ± {row['difference_error']:.2g}: {row['verdict']}{detail}"
        )


def likelihoods(scores: dict[str, Any]) -> Iterator[str]:
    """The log-likelihoods among ``scores`` (of `grbm.report.scores`) as a small table, and what they mean."""
    bits, censored = "bits_per_dimension_train" in scores, "censored" in scores
    what = "of grey levels" if censored else "dequantised"
    yield "\nLog-likelihood, nats per sample" + (f"; {what}, nats per sample and bits per dimension:" if bits else ":")
    for name, label in (("train", "training"), ("test", "held out")):
        if f"rows_{name}" not in scores:
            continue
        kinds = ("log_likelihood", *(("dequantised", "bits_per_dimension") if bits else ()))
        columns = [with_error(scores[f"{kind}_{name}"], scores[f"{kind}_{name}_error"]) for kind in kinds]
        yield f"  {label:<9}{scores[f'rows_{name}']:>8,} rows   " + "   ".join(columns)
    yield f"log Z = {scores['log_z']:.3f} ± {scores['log_z_error']:.2g} ({scores['log_z_method']})"
    if "log_z_verdict" in scores:
        doubt = "" if scores["log_z_converged"] else f" Do not use these likelihoods.{_remedy(scores)}"
        yield scores["log_z_verdict"] + doubt
    text = "Errors are standard errors, of the rows and of log Z together."
    if not censored:
        text += " Densities are of the data in their own units: log p(x) = -F(z) - log Z - sum log scale, with "
        text += "standardised rows z and their free energy F."
    if censored and bits:
        text += " A grey level has the probability of all values that are rounded to it, those beyond black and white "
        text += "among them: bits per dimension are those that the pixels themselves cost, with no noise added."
    elif bits:
        text += " Pixels are whole numbers, at which a density can be as high as it likes; dequantised, each has "
        text += (
            "uniform noise of one level added, and minus the mean is at least the bits that the pixels themselves cost."
        )
    yield textwrap.fill(text, 100)
