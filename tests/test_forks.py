"""Forked processes, in which the threads of their parents are gone."""

import subprocess
import sys

import pytest
import torch

from grbm import GaussianBernoulliRBM
from grbm.core.devices import threads

FORKS = """
import os, sys, numpy as np
from multiprocessing import get_context
from grbm import GaussianBernoulliRBM
X = np.random.default_rng(0).normal(size=(600, 12))
big, gappy = np.repeat(X, 100, 0), X[:100].copy()
gappy[:, 3] = np.nan
rbm = GaussianBernoulliRBM(n_iter=1, n_jobs=2, random_state=0).fit(X)
expected = rbm.score_samples(big)

def same(_):
    return bool((rbm.score_samples(big) == expected).all())

uses = [lambda: rbm.transform(big), lambda: rbm.sample(50), lambda: rbm.impute(gappy, n_steps=8),
        lambda: GaussianBernoulliRBM(n_iter=1, random_state=1).fit(X),
        lambda: GaussianBernoulliRBM(n_iter=1, n_jobs=2, whiten=True).fit(X), lambda: rbm.partial_fit(X)]
for use in uses:
    pid = os.fork()
    if pid == 0:
        use()
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
with get_context("fork").Pool(2) as pool:
    print([int(not x) for x in pool.map(same, range(2))])
"""


SAMPLES = """
import os, torch
from grbm import GRBM, Gibbs, sample
torch.set_num_threads(2)
model = GRBM(200, 200)
sample(model, Gibbs(), n_chains=2000, n_steps=20, seed=0)
pid = os.fork()
if pid == 0:
    sample(model, Gibbs(), n_chains=2000, n_steps=20, seed=0)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="processes are not forked here")
def test_a_forked_child_computes_alone():
    """All that an estimator does, after its parent has computed with several threads."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [*["0"] * 6, "[0, 0]"], done.stderr


@pytest.mark.whole
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="processes are not forked here")
def test_samplers_alone_are_used_in_forked_children_too():
    done = subprocess.run([sys.executable, "-c", SAMPLES], capture_output=True, text=True, timeout=100)
    assert done.stdout == "0\n", done.stderr


def test_small_machines_take_one_thread(monkeypatch):
    seen = []
    monkeypatch.setattr("grbm.fitting.estimator.threads", lambda n: seen.append(n) or threads(n))
    X = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)).numpy()
    small = GaussianBernoulliRBM(n_iter=1, random_state=0).fit(X)
    small.score_samples(X)
    assert set(seen) == {1}
    seen.clear()
    GaussianBernoulliRBM(64, n_iter=1, n_jobs=2, random_state=0).fit(X)
    assert set(seen) == {2}
    seen.clear()
    monkeypatch.setattr("grbm.fitting.recipe.SHARED", 10)
    GaussianBernoulliRBM(n_iter=1, random_state=0).fit(X)
    assert set(seen) == {None}
