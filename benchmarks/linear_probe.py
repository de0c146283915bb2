"""How well a linear classifier reads labels off the binary codes of a run, beside raw pixels and PCA.

    uv run grbm train mnist-small --data-dir DIR
    uv run python -m benchmarks.linear_probe runs/mnist-small --data-dir DIR

Multinomial logistic regression on standardised features. Its penalty is chosen on every sixth training row, which it
does not see then; it is fitted again to all training rows, and scored once on the test set. Standard errors are those
of the share of test images.
"""

import argparse
import math
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from grbm import UserError, runs
from grbm.data.images import IDX_FOLDERS, load_digits, load_idx
from grbm.runs.encoding import codes

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # C of scikit-learn: the inverse of the penalty


class Probe(NamedTuple):
    accuracy: float
    error: float  # standard error
    penalty: float


def probe(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray, iterations: int = 300) -> Probe:
    """Test accuracy of logistic regression on features (n, d) with labels (n,)."""
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    left_out = np.arange(len(train)) % 6 == 0

    def fit(penalty: float, rows: np.ndarray) -> LogisticRegression:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the iterations are a part of the protocol
            return LogisticRegression(C=penalty, max_iter=iterations).fit(train[rows], labels[rows])

    def score(penalty: float) -> float:
        return float(fit(penalty, ~left_out).score(train[left_out], labels[left_out]))

    best = max(PENALTIES, key=score)
    accuracy = float(fit(best, np.ones(len(train), bool)).score(test, truth))
    return Probe(accuracy, math.sqrt(accuracy * (1 - accuracy) / len(test)), best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--iterations", type=int, default=300)
    options = parser.parse_args()
    run = runs.read(options.run)
    config = replace(run.config, data_dir=options.data_dir or run.config.data_dir)
    if config.dataset.name == "digits":
        images, labels = load_digits()
        numbers = config.load_data().numbers  # the run's own split: what it held out it has never seen
        assert numbers is not None
        sets = [(images[part], labels[part]) for part in numbers]
    elif config.dataset.name in IDX_FOLDERS:
        sets = [load_idx(config.dataset.name, config.data_dir, train=part) for part in (True, False)]
    else:
        raise UserError(f"{options.run} is a run on {config.dataset.name}, which has no labels.")
    (known, labels), (unseen, truth) = sets
    n_hidden = run.model.n_hidden
    pca = PCA(min(n_hidden, known.shape[1]), random_state=0).fit(known.numpy())
    features = {
        "pixels": [known.numpy(), unseen.numpy()],
        f"PCA, {pca.n_components_} components": [pca.transform(x.numpy()) for x in (known, unseen)],
        f"{n_hidden} hidden probabilities": [np.concatenate(list(codes(run, x))) for x in (known, unseen)],
        f"{n_hidden} hidden bits, drawn": [
            np.concatenate(list(codes(run, x, bits=True, seed=seed))).astype(np.float32)
            for seed, x in enumerate((known, unseen))
        ],
    }
    width = max(map(len, features))
    print(f"{'':<{width}}  test accuracy      C     seconds")
    for name, (train, test) in features.items():
        started = time.perf_counter()
        found = probe(train, labels.numpy(), test, truth.numpy(), options.iterations)
        seconds = time.perf_counter() - started
        print(
            f"{name:<{width}}  {found.accuracy:.4f} ± {found.error:.4f}  {found.penalty:<7g} {seconds:5.0f}", flush=True
        )


if __name__ == "__main__":
    main()
