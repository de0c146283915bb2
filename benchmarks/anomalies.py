"""Anomalies among unseen rows: area under the curve (AUC) of our log-densities, and of four detectors.

    python -m benchmarks.anomalies --folder DIR    # and the numbers of each CSV file in DIR
    python -m benchmarks.anomalies --table         # what has been measured so far

"mixed": three quarters of the rows are learned from; in half of the others a third of the columns have their numbers
from another row, so that each is usual by itself and together they are not. "class": rows of one kind are learned from,
and those of another kind are the anomalies. Results go to ``--out`` (JSON lines), and what is there is not measured
again.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from benchmarks.gaps import tables
from grbm import GaussianBernoulliRBM
from grbm.model.reference import best_mixture

Array = np.ndarray[Any, Any]
CLASSES = {"wine": (0, 1), "breast_cancer": (1,)}  # that are learned from
COMPONENTS = (1, 2, 3, 4, 5, 6, 8, 10)
RIVALS = ("forest", "LOF", "mixture", "SVM")


def mixed(x: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Rows to learn from, and unseen ones with whether each is an anomaly."""
    order, n_test = rng.permutation(len(x)), len(x) // 4
    train, test = x[order[n_test:]], x[order[:n_test]].copy()
    is_odd = np.arange(n_test) % 2 == 1
    for row in is_odd.nonzero()[0]:
        columns = rng.permutation(x.shape[1])[: max(1, x.shape[1] // 3)]
        test[row, columns] = train[rng.integers(len(train)), columns]
    return train, test, is_odd


def by_class(name: str, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """The same, of classes."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    usual = np.isin(y, CLASSES[name])
    order = rng.permutation(usual.nonzero()[0])
    n_test = len(order) // 4
    test = np.concatenate([x[order[:n_test]], x[~usual]])
    return x[order[n_test:]], test, np.arange(len(test)) >= n_test


def measure(train: Array, test: Array, is_odd: Array, seed: int) -> dict[str, Any]:
    """AUC of all detectors."""
    began = time.process_time()
    rbm = GaussianBernoulliRBM(random_state=seed).fit(train)
    found: dict[str, Any] = {"seconds": time.process_time() - began, "is_gaussian": rbm.is_gaussian_}
    scores = {"ours": rbm.decision_function(test)}
    scaler = StandardScaler().fit(train)
    a, b = scaler.transform(train), scaler.transform(test)
    scores["forest"] = IsolationForest(random_state=seed).fit(a).decision_function(b)
    scores["LOF"] = LocalOutlierFactor(novelty=True).fit(a).decision_function(b)
    scores["mixture"] = best_mixture(a, ("full", "tied", "diag"), seed, components=COMPONENTS).score_samples(b)
    scores["SVM"] = OneClassSVM(nu=0.1).fit(a).decision_function(b)
    found["auc"] = {name: float(roc_auc_score(~is_odd, score)) for name, score in scores.items()}
    return found


def show(path: Path) -> None:
    """Print means over seeds."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    print("| table | anomalies | seeds | ours | " + " | ".join(RIVALS) + " | less the best of the others | CPU s |")
    print("|" + "---|" * (6 + len(RIVALS)))
    for name, kind in sorted({(line["table"], line["kind"]) for line in lines}):
        some = [line for line in lines if (line["table"], line["kind"]) == (name, kind)]
        mean = {rival: np.mean([line["auc"][rival] for line in some]) for rival in ("ours", *RIVALS)}
        cells = [name, kind, str(len(some)), *(f"{x:.3f}" for x in mean.values())]
        cells.append(f"{mean['ours'] - max(mean[rival] for rival in RIVALS):+.3f}")
        cells.append(f"{np.mean([line['seconds'] for line in some]):.0f}")
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("anomalies.jsonl"))
    parser.add_argument("--folder", type=Path, help="of CSV files")
    parser.add_argument("--tables", nargs="*", help="names of tables; by default all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="print what has been measured")
    options = parser.parse_args()
    if options.table:
        return show(options.out)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {(line["table"], line["kind"], line["seed"]) for line in map(json.loads, lines)}
    for name, x in tables(options.folder).items():
        if options.tables and name not in options.tables:
            continue
        for kind in ("mixed", *(("class",) if name in CLASSES else ())):
            for seed in range(options.seeds):
                if (name, kind, seed) in done:
                    continue
                rng = np.random.default_rng(seed)
                rows = mixed(x, rng) if kind == "mixed" else by_class(name, rng)
                found = {"table": name, "kind": kind, "seed": seed} | measure(*rows, seed)
                with options.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(json.dumps(found), flush=True)
    return None


if __name__ == "__main__":
    main()
