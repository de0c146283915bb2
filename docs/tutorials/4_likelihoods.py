"""
Likelihoods that can be trusted
===============================

The density of a GRBM is known up to its partition function Z, a sum over all hidden
states. Up to 36 hidden units this library adds them up; above that it estimates log Z
by annealed importance sampling from both ends, and says when the estimate must not be
believed.
"""

import math

import matplotlib.pyplot as plt
import torch

import grbm
from grbm.data.mixtures import MIXTURES
from grbm.evaluate import ais, exact

data = MIXTURES["anisotropic"].sample(2000, seed=0).float()
model = grbm.anchored_(grbm.GRBM(2, 18), data, var=0.3, seed=0)
rest = [model.W, model.b, model.mu]
optimizer = torch.optim.SGD(
    [{"params": rest, "lr": 0.05}, {"params": [model.log_var], "lr": 0.005}]
)
state = grbm.TrainState(model, optimizer, seed=0)
objective = grbm.PCD(
    grbm.ParallelTempering(base=grbm.Base.fit(data)),
    n_steps=5,
    n_chains=100,
    probabilities=True,
)
for _ in grbm.fit(
    state, data, objective, grbm.FitOptions(n_updates=400, batch_size=500, centred=True)
):
    pass

# %%
# Exact, and estimated
# --------------------

truth = exact.log_z(model)
found = ais.log_z(model, data)
print(f"enumeration of 2^18 hidden states: {truth:.4f}")
print(f"annealing from both ends:          {found.log_z:.4f} ± {found.error:.4f}")
print(
    "  from independent units to the machine",
    f"{found.lower:.4f} ± {found.lower_error:.4f}",
)
print(
    "  from the machine to independent units",
    f"{found.upper:.4f} ± {found.upper_error:.4f}",
)
print(found.verdict)

# %%
# The estimate from independent units is too low on average, the one from the machine
# too high: where they meet, both are right.

steps = [1, 3, 10, 30, 100]
runs = [ais.log_z(model, data, n_steps=n, n_chains=500) for n in steps]
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
for which, label in (
    ("lower", "from independent units"),
    ("upper", "from the machine"),
):
    values = [getattr(run, which) - truth for run in runs]
    axis.errorbar(
        steps,
        values,
        [2 * getattr(run, f"{which}_error") for run in runs],
        label=label,
        capsize=3,
    )
axis.axhline(0, color="gray", linestyle=":")
axis.set(
    xscale="log",
    xlabel="temperatures",
    ylabel="error of log Z, nats",
    title="two standard errors",
)
axis.legend()
plt.show()

for n, run in zip(steps, runs, strict=True):
    print(f"{n:4} temperatures: {run.verdict}")

# %%
# The likelihood itself
# ---------------------

log_p = model.log_prob(data, found.log_z).detach()
error = math.hypot(float(log_p.std()) / len(log_p) ** 0.5, found.error)
print(f"mean log-likelihood {float(log_p.mean()):.3f} ± {error:.3f} nats per point")
of_the_truth = float(MIXTURES["anisotropic"].log_prob(data).mean())
print(f"of the density that made the data {of_the_truth:.3f}")

# %%
# ``grbm evaluate RUN --log-likelihood`` does this for whole data sets, in the data's
# own units and for images in bits per dimension; see :doc:`/likelihoods`.
