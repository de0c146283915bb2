"""
Digits: train, look, sample
===========================

Images from noise, with the recipe that was best in our measurements: persistent chains,
a tenth of which start again from noise at every update, and the centred gradient.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import grbm

images = torch.tensor(load_digits().data / 16).float()
# One number for all pixels, since they share a unit.
data = (images - images.mean()) / images.std()

model = grbm.GRBM(n_visible=64, n_hidden=128)
state = grbm.TrainState(model, torch.optim.SGD(model.parameters(), lr=0.05), seed=0)
objective = grbm.PCD(
    grbm.Gibbs(), n_steps=10, n_chains=256, probabilities=True, restart=0.1
)
options = {"batch_size": 256, "centred": True, "min_var": 0.02, "average_decay": 0.99}

norms = []
for metrics in grbm.fit(
    state, data, objective, grbm.FitOptions(n_updates=1000, **options)
):
    norms.append(float(metrics.grad_norm))
model = state.average

# %%
# ``fit`` is a generator: what to log, to draw or to stop at is the caller's choice.
# Every random number follows from the seed and the number of the update, so a run that
# is stopped and resumed ends with the same bits.

print(
    f"{state.update} updates; gradient norm {norms[0]:.2f} at the start,",
    f"{norms[-1]:.2f} at the end",
)


def show(axis, rows, title, columns=12):
    """Rows of 64 numbers as one picture."""
    tiles = rows.reshape(-1, columns, 8, 8).permute(0, 2, 1, 3).reshape(-1, 8 * columns)
    axis.imshow(tiles, cmap="gray", vmin=float(data.min()), vmax=float(data.max()))
    axis.set(title=title, xticks=[], yticks=[])


# %%
# Samples from noise
# ------------------
# Chains start at noise and take Gibbs steps. The picture shows the mean of v given h at
# the last step, as the paper's does; v itself has the noise of the conditional variance
# on top.

chains = grbm.sample(model, grbm.Gibbs(), n_chains=72, n_steps=200, seed=1, mean=True)
figure, axes = plt.subplots(1, 2, figsize=(9, 5), layout="constrained")
show(axes[0], data[:72], "data")
show(axes[1], chains.v, "from noise, 200 steps")
plt.show()

# %%
# The way from noise
# ------------------

steps = [1, 3, 10, 30, 100, 300]
path = grbm.sample(
    model, grbm.Gibbs(), n_chains=12, n_steps=300, keep_at=steps, seed=2, mean=True
)
figure, axis = plt.subplots(figsize=(8, 4.4), layout="constrained")
show(
    axis, path.v.reshape(-1, 64), "rows: after " + ", ".join(map(str, steps)) + " steps"
)
plt.show()

# %%
# Filters
# -------
# Each hidden unit adds its column of W to the image when it is on.

strongest = model.W.detach().norm(dim=0).argsort(descending=True)[:48]
figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
filters = model.W.detach().T[strongest]
tiles = filters.reshape(-1, 16, 8, 8).permute(0, 2, 1, 3).reshape(-1, 128)
axis.imshow(
    tiles,
    cmap="RdBu",
    vmin=-float(filters.abs().max()),
    vmax=float(filters.abs().max()),
)
axis.set(title="weights of the 48 strongest hidden units", xticks=[], yticks=[])
plt.show()

# %%
# ``grbm train digits`` does all this with 256 hidden units, checkpoints and a page of
# results; ``grbm train mnist-small`` the same on MNIST in minutes.
