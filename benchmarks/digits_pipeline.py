"""Digits by logistic regression on pixels, on BernoulliRBM's codes and on GaussianBernoulliRBM's, tuned alike.

    uv run python -m benchmarks.digits_pipeline

Five-fold cross-validation (stratified, shuffled with seed 0). Each pipeline tries the same penalties, both machines as
many learning rates, and BernoulliRBM two lengths of training besides; it is given pixels in [0, 1], which it needs,
and standardised ones too. What is printed is the best setting's mean accuracy and the standard error over folds.
"""

import argparse
import tempfile
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neural_network import BernoulliRBM
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from grbm import GaussianBernoulliRBM


def pipelines(n_components: int) -> dict[str, tuple[list, dict]]:
    """Steps before the logistic regression, and the settings that each tries."""
    bernoulli = BernoulliRBM(n_components, random_state=0)
    gaussian = GaussianBernoulliRBM(n_components, random_state=0)
    tried = {"rbm__learning_rate": [0.01, 0.03, 0.1], "rbm__n_iter": [10, 50]}
    return {
        "pixels, standardised": ([("scaler", StandardScaler())], {}),
        "BernoulliRBM, pixels in [0, 1]": ([("scaler", MinMaxScaler()), ("rbm", bernoulli)], tried),
        "BernoulliRBM, standardised": ([("scaler", StandardScaler()), ("rbm", bernoulli)], tried),
        "GaussianBernoulliRBM, standardised": (
            [("scaler", StandardScaler()), ("rbm", gaussian)],
            {"rbm__learning_rate": [0.03, 0.05, 0.1]},
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-components", type=int, default=256)
    parser.add_argument("--rows", type=int, default=None, help="a part of the digits, for a quick look")
    arguments = parser.parse_args()
    X, y = load_digits(return_X_y=True)
    X, y = X[: arguments.rows], y[: arguments.rows]
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    print(f"{'':36}accuracy          best settings")
    for name, (steps, grid) in pipelines(arguments.n_components).items():
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as memory:  # a machine is trained once for all penalties
            pipeline = Pipeline([*steps, ("classifier", LogisticRegression(max_iter=3000))], memory=memory)
            search = GridSearchCV(pipeline, grid | {"classifier__C": [0.01, 0.1, 1, 10, 100]}, cv=folds).fit(X, y)
        scores = np.array([search.cv_results_[f"split{k}_test_score"][search.best_index_] for k in range(5)])
        settings = ", ".join(f"{key.split('__')[1]} {value}" for key, value in search.best_params_.items())
        print(
            f"{name:36}{scores.mean():.4f} ± {scores.std(ddof=1) / 5**0.5:.4f}   {settings} "
            f"({time.perf_counter() - start:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
