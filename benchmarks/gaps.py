"""Learning from rows with gaps: errors of what is filled in, how often intervals hold, nats of unseen rows.

    python -m benchmarks.gaps                      # six tables, 30 % and 50 % of numbers missing, five masks: hours
    python -m benchmarks.gaps --tables iris wine --masks 1
    python -m benchmarks.gaps --table              # what has been measured so far

All methods fill the same gaps of the rows that they learn from. Errors are root mean squares, in deviations of the
columns. Intervals are means ± 1.645 deviations, which should hold 90 % of what is missing. Nats are of what a quarter
of the rows, unseen and as gappy, have, above those of a Gaussian: the most likely one of the rows with gaps, by EM, and
one that is "shrunk" as ours. Results go to ``--out`` (JSON lines), and what is there is not measured again.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer

from grbm import GaussianBernoulliRBM
from grbm.fitting.gaps import HARDLY, by_em, shrinkage

Array = np.ndarray[Any, Any]
REAL = ("iris", "wine", "diabetes", "breast_cancer")


def tables(folder: Path | None) -> dict[str, Array]:
    """Return scikit-learn's tables, and numbers of each CSV file in a folder, without rows that have gaps."""
    found = {name: getattr(datasets, f"load_{name}")().data.astype(np.float64) for name in REAL}
    for path in sorted(folder.glob("*.csv")) if folder else []:
        import pandas

        found[path.stem] = pandas.read_csv(path).select_dtypes("number").dropna().to_numpy(np.float64)
    return found


def with_gaps(x: Array, share: float, rng: np.random.Generator) -> Array:
    """Rows of x with a ``share`` of their numbers missing at random, but at least one number each."""
    gappy = np.where(rng.random(x.shape) < share, np.nan, x)
    empty = np.isnan(gappy).all(1).nonzero()[0]
    column = rng.integers(x.shape[1], size=len(empty))
    gappy[empty, column] = x[empty, column]
    return gappy


def gaussian_nats(train: Array, test: Array, *, shrunk: bool = False) -> Array:
    """log p of what test rows have, under a Gaussian fitted by EM to the gappy rows of ``train``, in their units."""
    varies = np.nanmin(train, 0) < np.nanmax(train, 0)
    centre, scale = np.nanmean(train, 0), np.where(varies, np.nanstd(train, 0), 1.0)
    rows = torch.from_numpy((train - centre) / scale)
    mean, covariance = (p.numpy() for p in by_em(rows, shrinkage(rows) if shrunk else HARDLY))
    found = []
    for row in (test - centre) / scale:
        known = ~np.isnan(row)
        away = row[known] - mean[known]
        inside = covariance[np.ix_(known, known)]
        nats = -0.5 * (away @ np.linalg.solve(inside, away) + np.linalg.slogdet(2 * np.pi * inside)[1])
        found.append(nats - np.log(scale[known]).sum())
    return np.array(found)


def measure(x: Array, share: float, seed: int, *, trees: bool) -> dict[str, Any]:
    """Measure all methods on one mask."""
    rng = np.random.default_rng([seed, int(100 * share)])
    order, n_test = rng.permutation(len(x)), len(x) // 4
    whole, unseen = x[order[n_test:]], with_gaps(x[order[:n_test]], share, rng)
    train = with_gaps(whole, share, rng)
    scale, gaps = np.where(whole.std(0) > 0, whole.std(0), 1.0), np.isnan(train)

    def error(filled: Array) -> float:
        return float(np.sqrt(np.square((filled - whole) / scale)[gaps].mean()))

    began = time.process_time()
    rbm = GaussianBernoulliRBM(random_state=seed).fit(train)
    found: dict[str, Any] = {"seconds": time.process_time() - began, "is_gaussian": rbm.is_gaussian_}
    filled, std = rbm.impute(train, return_std=True)
    found["errors"] = {"ours": error(filled)}
    found["held"] = float((np.abs(filled - whole) <= 1.645 * std)[gaps].mean())
    nats = rbm.score_samples(unseen)
    for name, is_shrunk in {"nats above Gaussian": False, "nats above shrunk": True}.items():
        apart = nats - gaussian_nats(train, unseen, shrunk=is_shrunk)
        found[name] = [float(apart.mean()), float(apart.std() / np.sqrt(len(apart)))]
    rivals: dict[str, Callable[[], Any]] = {
        "iterative": lambda: IterativeImputer(random_state=seed, max_iter=20),
        "neighbours": KNNImputer,
    }
    if trees:
        forest = ExtraTreesRegressor(30, random_state=seed)
        rivals["forests"] = lambda: IterativeImputer(forest, random_state=seed, max_iter=5)
    for name, make in rivals.items():
        found["errors"][name] = error(make().fit_transform(train / scale) * scale)
    return found


def show(path: Path) -> None:
    """Print means over masks."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    print(
        "| table | missing | masks | ours | iterative | neighbours | forests | held | nats above a Gaussian | above "
        "a shrunk one | CPU s |"
    )
    print("|" + "---|" * 11)
    for name, share in sorted({(line["table"], line["share"]) for line in lines}):
        some = [line for line in lines if (line["table"], line["share"]) == (name, share)]
        cells = [name, f"{share:.0%}", str(len(some))]
        for rival in ("ours", "iterative", "neighbours", "forests"):
            errors = [line["errors"][rival] for line in some if rival in line["errors"]]
            cells.append(f"{np.mean(errors):.3f}" if errors else "–")
        cells.append(f"{np.mean([line['held'] for line in some]):.0%}")
        for rival in ("Gaussian", "shrunk"):
            nats = np.array([line[f"nats above {rival}"] for line in some])
            cells.append(f"{nats[:, 0].mean():+.2f} ± {nats[:, 1].mean():.2f}")
        cells.append(f"{np.mean([line['seconds'] for line in some]):.0f}")
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--folder", type=Path, help="CSV files of other tables")
    parser.add_argument("--masks", type=int, default=5)
    parser.add_argument("--no-trees", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("gaps.jsonl"))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        show(options.out)
        return
    done = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    measured = {(line["table"], line["share"], line["seed"]) for line in done}
    for seed in range(options.masks):
        for name, x in tables(options.folder).items():
            for share in (0.3, 0.5):
                if (options.tables and name not in options.tables) or (name, share, seed) in measured:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = measure(x, share, seed, trees=not options.no_trees)
                line = json.dumps({"table": name, "share": share, "seed": seed} | found)
                with options.out.open("a") as file:
                    file.write(line + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
