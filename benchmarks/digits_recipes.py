"""How training recipes compare on scikit-learn's digits: samples from noise, and likelihood, after equal updates.

    uv run python -m benchmarks.digits_recipes

Samples are conditional means after 100 steps from noise, scored by the Fréchet distance to the data in the 128 features
of a small classifier trained here, by that classifier's mean confidence, and by the entropy of its predicted classes
(log 10 = 2.303 at best). The log-likelihood is the annealing estimate, whose log Z is too low on average.
"""

import time
import warnings
from dataclasses import replace

import numpy as np
import torch
from scipy.linalg import sqrtm
from sklearn.neural_network import MLPClassifier

from grbm import GRBM, Annealed, Base, TrainState, fit, sample
from grbm.data.images import load_digits
from grbm.data.standardise import standardise
from grbm.fitting.recipe import ObjectiveConfig, SamplerConfig
from grbm.runs.config import RunConfig
from grbm.runs.presets import PRESETS

warnings.simplefilter("ignore")
OURS = PRESETS["digits"].config


def recipes() -> dict[str, RunConfig]:
    """Ours, and what it was chosen over."""
    adam = replace(
        OURS.train,
        optimizer="adam",
        learning_rate=0.003,
        adam_beta1=0.5,
        centred=False,
        spectral_norm=None,
        clip_norm=None,
        average_decay=None,
    )
    partial, modified = SamplerConfig("partial-gibbs", rho=0.9), ObjectiveConfig("modified-cd", n_steps=30)
    return {
        "recommended (restart 0.1)": OURS,
        "plain steps": replace(OURS, train=replace(OURS.train, spectral_norm=None)),
        "plain steps, a rate of 0.05": replace(OURS, train=replace(OURS.train, spectral_norm=None, learning_rate=0.05)),
        "without restarts": replace(OURS, objective=replace(OURS.objective, restart=0.0)),
        "without centring": replace(OURS, train=replace(OURS.train, centred=False)),
        "modified CD, partial moves, Adam": replace(OURS, sampler=partial, objective=modified, train=adam),
        "modified CD, the paper's SGD": replace(
            OURS, objective=modified, train=replace(adam, optimizer="sgd", learning_rate=0.01, clip_norm=10.0)
        ),
    }


def frechet(x: np.ndarray, y: np.ndarray) -> float:
    gap, a, b = x.mean(0) - y.mean(0), np.cov(x.T), np.cov(y.T)
    return float(gap @ gap + np.trace(a + b - 2 * sqrtm(a @ b).real))


def main() -> None:
    images, labels = load_digits()
    transform = standardise(images, "scalar", floor=0.1)
    data = transform(images)
    base = Base.fit(data)
    classifier = MLPClassifier((128,), random_state=0, max_iter=300).fit(images.numpy(), labels.numpy())

    def features(x: np.ndarray) -> np.ndarray:
        return np.maximum(0, x @ classifier.coefs_[0] + classifier.intercepts_[0])

    print(f"{'recipe':<34} {'updates':>7} {'seconds':>7} {'Fréchet':>8} {'confid.':>7} {'entropy':>7} {'log-lik.':>8}")
    for name, config in recipes().items():
        model = GRBM(64, config.model.n_hidden, seed=0)
        sampler = config.sampler.build(base)
        objective = config.objective.build(sampler, config.train.batch_size)
        state, started = TrainState(model, config.train.build(model)), time.perf_counter()
        n_updates = config.train.n_updates
        for _ in fit(state, data, objective, config.train):
            if state.update in (n_updates // 2, n_updates):
                seconds, learned = time.perf_counter() - started, state.average or model
                drawn = sample(learned, sampler, n_chains=2000, n_steps=100, seed=1, mean=True).v
                x = transform.inverse(drawn).clamp(0, 1).numpy()
                prob = classifier.predict_proba(x)
                share = np.bincount(prob.argmax(1), minlength=10) / len(x)
                entropy = -(share * np.log(share + 1e-12)).sum()
                log_z = sample(learned, Annealed(base), n_chains=500, n_steps=1000, seed=1).state.log_z
                with torch.no_grad():
                    log_likelihood = -float(learned.free_energy(data).mean()) - float(log_z)
                distance = frechet(features(x), features(images.numpy()))
                print(
                    f"{name:<34} {state.update:>7} {seconds:>7.0f} {distance:>8.2f} {prob.max(1).mean():>7.3f} "
                    f"{entropy:>7.3f} {log_likelihood:>8.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
