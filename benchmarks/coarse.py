"""Coarse columns: nats of unseen rows at random places of their cells, ours and those of a mixture by BIC.

    python -m benchmarks.coarse --folder DIR       # scikit-learn's diabetes, and the numbers of each CSV file in DIR
    python -m benchmarks.coarse --table            # what has been measured so far

Four fifths of the rows are learned from, at random places of their cells too, by the estimator with ``coarse="auto"``
and everything else at its default, by a full-covariance Gaussian, and by mixtures of Gaussians.
Tables of more than 8,000 rows are cut to so many at random. Results go to ``--out`` (JSON lines), and what is there is
not measured again.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.mixture import GaussianMixture

from benchmarks.gaps import tables
from grbm import GaussianBernoulliRBM
from grbm.data.coarse import grid_of
from grbm.model.reference import best_mixture

Array = np.ndarray[Any, Any]
COMPONENTS = (*range(1, 13), 16, 20)
MOST = 8000


def measure(x: Array, seed: int) -> dict[str, Any]:
    """Mean nats of the unseen rows, and the paired differences from the mixture."""
    rng = np.random.default_rng(seed)
    x = x[rng.permutation(len(x))[:MOST]]
    x = x[:, x.min(0) < x.max(0)]
    n_test = len(x) // 5
    test, train = (torch.from_numpy(rows) for rows in (x[:n_test], x[n_test:]))
    began = time.process_time()
    rbm = GaussianBernoulliRBM(coarse="auto", random_state=seed).fit(train.numpy())
    seconds = time.process_time() - began
    grid = grid_of(train, "auto")
    seen, unseen = grid.spread(train, seed).numpy(), grid.spread(test, seed + 1)
    centre, scale = seen.mean(0), seen.std(0)
    a, b = (seen - centre) / scale, (unseen.numpy() - centre) / scale
    mixture = best_mixture(a, ("full", "tied", "diag"), seed, components=COMPONENTS)
    nats = {
        "ours": rbm._fitted()._estimate(unseen, rbm.log_partition().value, 1, 0).log_p.numpy(),
        "Gaussian": GaussianMixture().fit(a).score_samples(b) - np.log(scale).sum(),
        "mixture": mixture.score_samples(b) - np.log(scale).sum(),
    }
    difference = nats["ours"] - nats["mixture"]
    found: dict[str, Any] = {
        "n": len(train),
        "n_columns": x.shape[1],
        "coarse": grid.n,
        "components": len(mixture.means_),
    }
    found |= {"scored": int(grid.is_scored.sum()), "seconds": seconds}
    found |= {name: float(value.mean()) for name, value in nats.items()}
    return found | {"difference": float(difference.mean()), "error": float(difference.std() / len(difference) ** 0.5)}


def show(path: Path) -> None:
    """Print what has been measured."""
    print("| table | columns, coarse, as scores | seed | ours | Gaussian | mixture | ours less the mixture | CPU s |")
    print("|" + "---|" * 8)
    for line in sorted(map(json.loads, path.read_text().splitlines()), key=lambda x: (x["table"], x["seed"])):
        cells = [line["table"], f"{line['n_columns']}, {line['coarse']}, {line['scored']}", str(line["seed"])]
        cells += [f"{line[name]:.2f}" for name in ("ours", "Gaussian", "mixture")]
        cells += [f"{line['difference']:+.2f} ± {line['error']:.2f}", f"{line['seconds']:.0f}"]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("coarse.jsonl"))
    parser.add_argument("--folder", type=Path, help="of CSV files")
    parser.add_argument("--tables", nargs="*", help="names of tables; by default all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="print what has been measured")
    options = parser.parse_args()
    if options.table:
        return show(options.out)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {(line["table"], line["seed"]) for line in map(json.loads, lines)}
    for seed in range(options.seeds):
        for name, x in tables(options.folder).items():
            if (options.tables and name not in options.tables) or (name, seed) in done:
                continue
            found = {"table": name, "seed": seed} | measure(x, seed)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps(found), flush=True)
    return None


if __name__ == "__main__":
    main()
