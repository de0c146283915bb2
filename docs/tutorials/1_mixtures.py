"""
Mixtures: learn a density, and check it
=======================================

In two dimensions everything about a GRBM can be computed exactly, so this is where to
see what learning does. The data are the paper's mixture of three round modes with
weights 0.33, 0.33 and 0.34.
"""

import matplotlib.pyplot as plt
import torch

import grbm
from grbm.data.mixtures import MIXTURES
from grbm.evaluate import exact

mixture = MIXTURES["isotropic"]
data = mixture.sample(2000, seed=0).float()

# %%
# The recipe
# ----------
# Modes that lie far apart are what Gibbs chains cannot travel between. So the chains
# are *tempered*: replicas at lower inverse temperatures, where the modes run together,
# swap places with those of the model. Persistent chains (PCD) go on where the last
# update left them, and hidden units start undecided at points of the data
# (`anchored_`). The variances learn slowly: faster, they would cover all modes by one
# wide Gaussian before the hidden units have found them.

model = grbm.anchored_(grbm.GRBM(n_visible=2, n_hidden=16), data, var=0.5, seed=0)
rest = [model.W, model.b, model.mu]
slow_variances = torch.optim.SGD(
    [{"params": rest, "lr": 0.05}, {"params": [model.log_var], "lr": 0.005}]
)
state = grbm.TrainState(model, slow_variances, seed=0)
tempered = grbm.ParallelTempering(base=grbm.Base.fit(data), n_replicas=8)
objective = grbm.PCD(tempered, n_steps=5, n_chains=100, probabilities=True)

updates, likelihood = [], []
for metrics in grbm.fit(
    state,
    data,
    objective,
    grbm.FitOptions(n_updates=1000, batch_size=500, centred=True, average_decay=0.99),
):
    if state.update % 50 == 0:
        updates.append(state.update)
        likelihood.append(float(exact.log_prob(state.average, data).mean()))
best = float(mixture.log_prob(data).mean())
print(
    f"log-likelihood {likelihood[-1]:.3f} nats;",
    f"of the density that made the data {best:.3f}",
)

# %%
# What it learned
# ---------------
# With 16 hidden units the model is a mixture of 2\ :sup:`16` Gaussians, which are
# enumerated: the density below is exact, and so are the likelihoods above.

grid = torch.linspace(-9, 9, 181)
points = torch.cartesian_prod(grid, grid)
model = state.average  # of the parameters along the way
density = exact.log_prob(model, points).exp().view(181, 181)

figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
axes[0].plot(updates, likelihood)
axes[0].axhline(best, color="gray", linestyle=":")
axes[0].set(xlabel="update", ylabel="nats per point", title="exact log-likelihood")
axes[1].pcolormesh(grid, grid, density.T, cmap="Blues")
axes[1].set(title="density of the model", aspect="equal")
plt.show()

# %%
# Samples from noise
# ------------------
# Annealed chains go from a Gaussian to the model, and their importance weights give
# every mode its mass.

drawn = grbm.sample(
    model, grbm.Annealed(base=grbm.Base.fit(data)), n_chains=1000, n_steps=300, seed=1
).v
figure, axis = plt.subplots(figsize=(4, 4), layout="constrained")
axis.scatter(*drawn.T, s=2)
axis.set(title="samples from noise", aspect="equal", xlim=(-9, 9), ylim=(-9, 9))
plt.show()

shares = mixture.modes(drawn).bincount(minlength=3) / len(drawn)
print("shares of the modes:", [round(share, 3) for share in shares.tolist()])

# %%
# The command line does the same with the recommended settings, more hidden units and a
# page of results: ``grbm train isotropic``. All five samplers of the paper, compared:
# ``grbm reproduce fig1``.
