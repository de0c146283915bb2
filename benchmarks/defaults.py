"""Defaults alone, no option set, on a family of tables: held-out nats, masses, imputation, anomalies, seconds.

    python -m benchmarks.defaults                      # everything, one seed: an hour on two cores
    python -m benchmarks.defaults --only iris,equal-3 --seeds 3
    python -m benchmarks.defaults --table              # what has been measured so far

Results go to ``--out`` (JSON lines), and what is there is not measured again. "before" has no whitening:
standardised columns, 256 hidden units, 8 tempered replicas, whose log Z is annealed.
"""

import argparse
import json
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import wide_tables
from grbm import GaussianBernoulliRBM
from grbm.evaluate.baselines import baselines

Array = np.ndarray[Any, Any]
DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


class Table(NamedTuple):
    """Rows to learn from and rows held out, and what is known of them."""

    train: Array
    test: Array
    log_p: Array | None = None  # of the held-out rows, where the density is known
    modes: Callable[[Array], Array] | None = None  # the cluster that a row belongs to
    masses: Array | None = None


def mixture(kind: str, k: int, n: int) -> Table:
    """Random mixture number ``k``: 2 to 10 dimensions, 2 to 12 components, their widths equal or not."""
    rng = np.random.default_rng([k, kind == "equal"])
    D, K = int(rng.integers(2, 11)), int(rng.integers(2, 13))
    means, masses = 3 * rng.normal(size=(K, D)), rng.dirichlet(np.full(K, 3.0))
    widths = np.full((K, D), 0.6) if kind == "equal" else rng.uniform(0.3, 1.5, size=(K, D))

    def parts(x: Array) -> Array:
        z = (x[:, None] - means) / widths
        return -0.5 * (z**2).sum(-1) - np.log(widths).sum(-1) + np.log(masses) - 0.5 * D * math.log(2 * math.pi)

    which = rng.choice(K, n + 4000, p=masses)
    x = means[which] + widths[which] * rng.normal(size=(len(which), D))
    log_p = np.logaddexp.reduce(parts(x[n:]), axis=1)
    return Table(x[:n], x[n:], log_p, lambda rows: parts(rows).argmax(1), masses)


def shape(name: str) -> Table:
    """Rings, moons, spirals and the like."""
    rng = np.random.default_rng(7)
    n = 4000
    if name == "moons":
        from sklearn.datasets import make_moons

        x = make_moons(n, noise=0.07, random_state=0)[0]
    elif name == "ring":
        angle = rng.uniform(0, 2 * np.pi, n)
        x = np.c_[np.cos(angle), np.sin(angle)] * (3 + 0.1 * rng.normal(size=(n, 1)))
    elif name == "eight-clusters":
        angle = 2 * np.pi * rng.integers(0, 8, n) / 8
        x = 4 * np.c_[np.cos(angle), np.sin(angle)] + 0.15 * rng.normal(size=(n, 2))
    elif name == "spirals":
        t, side = 3 * np.sqrt(rng.uniform(0.05, 1, n)), rng.choice([-1, 1], n)
        x = np.c_[t * np.cos(2 * t), t * np.sin(2 * t)] * side[:, None] + 0.1 * rng.normal(size=(n, 2))
    elif name == "uniform":
        x = rng.uniform(size=(n, 3))
    elif name == "heavy-tails":
        x = rng.standard_t(4, size=(n, 4))
    elif name == "cauchy":
        x = rng.standard_cauchy(size=(n, 3))
    elif name == "lognormal":
        x = np.exp(2 * rng.normal(size=(n, 4)))
    elif name == "zero-rows":  # three in five are
        x = rng.standard_t(2, size=(n, 5)) * (rng.random((n, 1)) < 0.4)
    elif name == "small":
        x = rng.normal(size=(200, 3)) * 0.5 + 3 * rng.integers(0, 2, (200, 1))
    elif name == "collinear-50":
        x = rng.normal(size=(2000, 8)) @ rng.normal(size=(8, 50)) + 5
    else:
        raise ValueError(name)
    half = len(x) // 2
    return Table(x[:half], x[half:])


FOLDS = 4  # of data sets of a few hundred rows, each of which is held out once


def real(name: str, fold: int = 0) -> Table:
    """Data sets of scikit-learn; a quarter of the rows is held out, another one in each fold."""
    from sklearn import datasets

    x = getattr(datasets, f"load_{name.replace('-', '_')}")().data.astype(np.float64)
    order = np.random.default_rng(0).permutation(len(x))
    test = np.arange(len(x)) * FOLDS // len(x) == FOLDS - 1 - fold
    return Table(x[order[~test]], x[order[test]])


def patches() -> Table:
    """Patches (5 x 5) of photographs, logarithms of brightness; those held out are of other photographs."""
    import io
    import zipfile

    from PIL import Image

    rng, rows = np.random.default_rng(0), []
    with zipfile.ZipFile(next((DATA / "natural").glob("*.zip"))) as archive:
        files = sorted(name for name in archive.namelist() if name.endswith((".jpg", ".png")))
        for file in files:
            grey = np.asarray(Image.open(io.BytesIO(archive.read(file))).convert("L"), dtype=np.float64)
            for _ in range(100):
                top, left = (rng.integers(size - 4) for size in grey.shape)
                rows.append(np.log1p(grey[top : top + 5, left : left + 5].ravel() + rng.uniform(size=25)))
    cut = int(0.8 * len(files)) * 100
    return Table(np.stack(rows[:cut]), np.stack(rows[cut:]))


HEAVIER = ("cauchy", "lognormal", "zero-rows")
SHAPES = ("ring", "eight-clusters", "moons", "spirals", "uniform", "heavy-tails", "small", "collinear-50", *HEAVIER)
REAL = ("iris", "wine", "breast-cancer", "diabetes", "digits")
SMALL = REAL[:4]  # too few rows for one split to say much
IMPUTED = ("breast-cancer", "digits")  # whose columns are all imputed, for every seed
TABLES: dict[str, Callable[[], Table]] = {
    **{f"equal-{k}": (lambda k=k: mixture("equal", k, 10_000)) for k in range(10)},
    **{f"unequal-{k}": (lambda k=k: mixture("unequal", k, 10_000)) for k in range(10)},
    **{name: (lambda name=name: shape(name)) for name in SHAPES},
    **{name: (lambda name=name: real(name)) for name in REAL},
    "patches": patches,
    **{name: (lambda name=name: Table(*wide_tables.wide(name))) for name in wide_tables.NAMES},
}


def ours(table: Table, seed: int) -> tuple[dict[str, Any], GaussianBernoulliRBM, Array]:
    """The estimator with nothing set but its seed."""
    began = time.perf_counter()
    rbm = GaussianBernoulliRBM(random_state=seed).fit(table.train)
    seconds = time.perf_counter() - began
    log_p = rbm.score_samples(table.test)
    log_z = rbm.log_partition()
    found = {"seconds": seconds, "nats": float(log_p.mean()), "log_z_error": log_z.error, "verdict": log_z.verdict}
    return found | {"method": log_z.method, "is_gaussian": rbm.is_gaussian_}, rbm, log_p


def preset(table: Table, seed: int) -> dict[str, Any]:
    """``grbm train array --data FILE.npy``."""
    from dataclasses import replace

    from grbm import runs
    from grbm.runs.presets import PRESETS
    from grbm.runs.training import train

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npy"
        np.save(path, table.train)
        config = replace(PRESETS["array"].config, data=path, seed=seed)
        began = time.perf_counter()
        train(config, Path(folder) / "run", asked={}, warn=lambda text: None)
        seconds = time.perf_counter() - began
        run = runs.read(Path(folder) / "run")
    seen = run.transform(torch.from_numpy(table.train))
    log_z = run.fitted.log_partition(seen=seen, seed=seed)
    nats = run.fitted.log_likelihood(torch.from_numpy(table.test), log_z.value)
    return {"seconds": seconds, "nats": nats.mean, "log_z_error": log_z.error}


def before(table: Table, seed: int) -> dict[str, Any]:
    """Fit 256 hidden units without whitening, behind a StandardScaler; a constant column is left out."""
    keep = table.train.std(0) > 0
    mean, std = table.train[:, keep].mean(0), table.train[:, keep].std(0)
    z, z_test = ((x[:, keep] - mean) / std for x in (table.train, table.test))
    began = time.perf_counter()
    rbm = GaussianBernoulliRBM(256, whiten=False, random_state=seed).fit(z)
    seconds = time.perf_counter() - began
    nats = float(rbm.score_samples(z_test).mean()) - float(np.log(std).sum())
    return {"seconds": seconds, "nats": nats, "verdict": rbm.log_partition().verdict}


def imputation(fits: list[tuple[Table, GaussianBernoulliRBM]], n_columns: int) -> dict[str, dict[str, float]]:
    """One column at a time, the others known: root mean square and mean absolute error, in the column's deviations.

    "apart" is ours less ``IterativeImputer``'s, of squares and of absolute errors, with the paired errors over rows.
    """
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer, KNNImputer

    off: dict[str, list[Array]] = {"ours": [], "iterative": [], "neighbours": []}
    for table, rbm in fits:
        std = np.where(table.train.std(0) > 0, table.train.std(0), 1)
        columns = np.flatnonzero(table.train.std(0) > 0)
        columns = columns[np.linspace(0, len(columns) - 1, min(n_columns, len(columns))).astype(int)]
        iterative = IterativeImputer(random_state=0, max_iter=20).fit(table.train / std)
        neighbours = KNNImputer().fit(table.train / std)
        imputers: dict[str, Callable[[Array], Array]] = {
            "ours": lambda gappy, rbm=rbm, std=std: rbm.impute(gappy) / std,
            "iterative": lambda gappy, imputer=iterative, std=std: imputer.transform(gappy / std),
            "neighbours": lambda gappy, imputer=neighbours, std=std: imputer.transform(gappy / std),
        }
        rows = table.test[:500]
        for name, impute in imputers.items():
            errors = np.empty((len(rows), len(columns)))
            for k, c in enumerate(columns):
                gappy = rows.copy()
                gappy[:, c] = np.nan
                errors[:, k] = impute(gappy)[:, c] - rows[:, c] / std[c]
            off[name].append(errors)
    by_row = {name: np.concatenate(errors) for name, errors in off.items()}
    found = {
        name: {"rms": math.sqrt((e**2).mean()), "mean_absolute": float(np.abs(e).mean())} for name, e in by_row.items()
    }
    for which, of in {"squares": np.square, "absolute": np.abs}.items():
        apart = (of(by_row["ours"]) - of(by_row["iterative"])).mean(1)
        found[f"apart_{which}"] = {"mean": float(apart.mean()), "error": float(apart.std() / math.sqrt(len(apart)))}
    return found


def anomalies(table: Table, rbm: GaussianBernoulliRBM) -> dict[str, float]:
    """Area under the ROC curve: held-out rows against rows whose columns were shuffled among them."""
    from sklearn.ensemble import IsolationForest
    from sklearn.metrics import roc_auc_score

    from grbm.model.reference import best_mixture

    rng = np.random.default_rng(3)
    fakes = np.stack([rng.permutation(column) for column in table.test.T], 1)
    both, label = np.concatenate([table.test, fakes]), np.repeat([1, 0], len(table.test))
    std = np.where(table.train.std(0) > 0, table.train.std(0), 1)
    mixture = best_mixture(table.train[:4000] / std, ("full", "tied", "diag") if both.shape[1] < 65 else ("diag",))
    forest = IsolationForest(random_state=0).fit(table.train)
    scores = {
        "ours": rbm.score_samples(both),
        "forest": forest.score_samples(both),
        "mixture": mixture.score_samples(both / std),
    }
    return {name: float(roc_auc_score(label, np.maximum(score, -1e9))) for name, score in scores.items()}


def measure(name: str, seed: int, *, whole: bool) -> dict[str, Any]:
    """All columns of a row of the table; what is slow or the same for every seed only where ``whole``.

    Of tables of a few hundred rows every row is held out once, and seconds and nats are means over the folds.
    """
    folds = [real(name, k) for k in range(FOLDS)] if name in SMALL else [TABLES[name]()]
    table = folds[0]
    found: dict[str, Any] = {"table": name, "seed": seed, "rows": len(table.train), "columns": table.train.shape[1]}
    fits = [ours(fold, seed) for fold in folds]
    _, rbm, log_p = fits[0]
    found["ours"] = fits[0][0] | {
        "seconds": float(np.mean([fit["seconds"] for fit, _, _ in fits])),
        "nats": float(np.concatenate([p for _, _, p in fits]).mean()),
        "log_z_error": max(fit["log_z_error"] for fit, _, _ in fits),
        "is_gaussian": sum(fit["is_gaussian"] for fit, _, _ in fits),
    }
    found["rivals"] = {}
    for each in zip(*(baselines(fold.train, fold.test) for fold in folds), strict=True):
        rival = np.concatenate([x.log_p for x in each])
        apart = np.concatenate([p for _, _, p in fits]) - np.maximum(rival, -1e6)
        error = math.hypot(float(apart.std()) / math.sqrt(len(apart)), found["ours"]["log_z_error"])
        found["rivals"][each[0].name] = {
            "nats": float(rival.mean()),
            "ours_above": float(apart.mean()),
            "error": error,
        }
    if table.log_p is not None and table.modes is not None and table.masses is not None:
        found["kl"] = float((table.log_p - log_p).mean())
        found["kl_gaussian"] = float(table.log_p.mean()) - found["rivals"]["full-covariance Gaussian"]["nats"]
        # of held-out rows, not the true masses: where clusters overlap a row's likeliest one need not be its own
        drawn, held_out = (
            np.bincount(table.modes(rows), minlength=len(table.masses)) / len(rows)
            for rows in (rbm.sample(4000, random_state=seed), table.test)
        )
        found["mass_error"] = float(np.abs(drawn - held_out).max())
    if whole:
        found["preset"] = preset(table, seed)
        found["anomalies"] = anomalies(table, rbm)
    if whole or name in wide_tables.NAMES:
        found["before"] = before(table, seed)
    if whole or name in IMPUTED:
        pairs = [(fold, machine) for fold, (_, machine, _) in zip(folds, fits, strict=True)]
        found["imputation"] = imputation(pairs, table.train.shape[1] if name in IMPUTED else 8)
    return found


def show(path: Path) -> None:
    """The table of what has been measured: medians over seeds."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    head = (
        "table",
        "rows x columns",
        "s",
        "ours",
        "preset",
        "before",
        "Gaussian",
        "mixture",
        "kernel",
        "KL",
        "share",
        "mass",
    )
    print("| " + " | ".join(head) + " | imputation | AUC |\n|" + "---|" * (len(head) + 2))
    for name in TABLES:
        rows = [x for x in lines if x["table"] == name]
        if not rows:
            continue
        first = next((x for x in rows if "before" in x), rows[0])

        def middle(get: Callable[[dict[str, Any]], float | None], rows: list[dict[str, Any]] = rows) -> str:
            numbers = [x for x in map(get, rows) if x is not None]
            return f"{np.median(numbers):.3g}" if numbers else "–"

        def rival(which: str, first: dict[str, Any] = first) -> str:
            found = first["rivals"].get(which)
            return f"{found['nats']:.4g} ({found['ours_above']:+.2g} ± {found['error']:.1g})" if found else "–"

        cells = [
            name,
            f"{first['rows']} x {first['columns']}",
            middle(lambda x: x["ours"]["seconds"]),
            f"{np.median([x['ours']['nats'] for x in rows]):.4g} ± {first['ours']['log_z_error']:.1g}",
            f"{first['preset']['nats']:.4g}" if "preset" in first else "–",
            f"{first['before']['nats']:.4g}" if "before" in first else "–",
            rival("full-covariance Gaussian"),
            rival("mixture of Gaussians"),
            rival("kernel density"),
            middle(lambda x: x.get("kl")),
            middle(lambda x: x["kl"] / x["kl_gaussian"] if "kl" in x else None),
            middle(lambda x: x.get("mass_error")),
            " / ".join(f"{x['rms']:.2g}" for x in first.get("imputation", {}).values() if "rms" in x) or "–",
            " / ".join(f"{x:.2f}" for x in first.get("anomalies", {}).values()) or "–",
        ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas: " + ", ".join(TABLES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/defaults.jsonl"))
    parser.add_argument("--quick", action="store_true", help="estimator and simpler models; 0.1 if wide")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if options.table:
        show(options.out)
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.is_file() else []
    done = {(x["table"], x["seed"]) for x in map(json.loads, lines)}
    warnings.simplefilter("ignore")
    for seed in range(options.seeds):
        for name in options.only.split(",") if options.only else TABLES:
            if (name, seed) in done:
                continue
            found = measure(name, seed, whole=seed == 0 and not options.quick)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
