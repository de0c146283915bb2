"""
Choosing a sampler: bias, mixing, cost
======================================

On a model whose distribution is known exactly, every sampler can be asked three things:
does it stay at that distribution, how fast does it forget where it was, and what does a
step cost?
"""

import math
import time

import matplotlib.pyplot as plt
import torch

import grbm
from grbm.evaluate import exact, mixing

model = grbm.GRBM(4, 10, seed=1)
with torch.no_grad():
    model.W.mul_(8)
    # Unequal variances, as training makes them.
    model.log_var.copy_(torch.tensor([0.0, -0.5, -1.0, -1.5]))
    model.b.copy_(-0.5 * ((model.W**2) / model.var[:, None]).sum(0))

samplers = {
    "Gibbs": grbm.Gibbs(),
    "partial Gibbs, 0.8": grbm.PartialGibbs(0.8),
    "Langevin": grbm.Langevin(0.8, per_unit=True),
    "Langevin, adjusted": grbm.Langevin(0.8, per_unit=True, adjust_from=0),
    "Gibbs-Langevin": grbm.GibbsLangevin(0.8, per_unit=True),
    "Gibbs-Langevin, adjusted": grbm.GibbsLangevin(0.8, per_unit=True, adjust_from=0),
    "tempered, 6 replicas": grbm.ParallelTempering(n_replicas=6),
}

# %%
# Bias and mixing
# ---------------
# 20,000 chains start *at* the exact distribution and take 50 steps. An exact sampler
# leaves the mean of :math:`v^2` where it is, within a few standard errors; an
# unadjusted Langevin sampler moves it by its step size. The correlation with the start
# says how much of it is remembered.

truth = exact.moments(model)
v0 = exact.sample(model, 20_000, seed=0)[0].float()
lags = [0, 1, 2, 5, 10, 20, 50]
remembered = {}
print(f"{'':26}{'bias of v², s.e.':>18}{'remembered':>12}{'µs/chain step':>15}")
for name, sampler in samplers.items():
    start = time.perf_counter()
    kept = grbm.sample(model, sampler, v0=v0, n_steps=50, keep_at=lags, seed=1).v
    cost = (time.perf_counter() - start) / 50 / len(v0)
    squares = kept[-1].double().square()
    error = squares.std(0) / math.sqrt(len(v0))
    bias = ((squares.mean(0) - truth.v2) / error).abs().max()
    remembered[name] = [
        float(torch.corrcoef(torch.stack([v0[:, 0], v[:, 0]]))[0, 1]) for v in kept
    ]
    print(f"{name:26}{float(bias):18.1f}{remembered[name][-1]:12.3f}{1e6 * cost:15.2f}")

# %%
# Exact are Gibbs, partial Gibbs, tempering, and what is adjusted: two or three standard
# errors at most. Gibbs-Langevin without adjustment samples a slightly other
# distribution, whatever the number of steps. Langevin's step size falls to 0 along a
# walk, and its bias with it.

figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, values in remembered.items():
    axis.plot(lags, values, marker="o", markersize=3, label=name)
axis.set(xscale="symlog", xlabel="steps", ylabel="correlation with the start")
axis.legend(fontsize=8)
plt.show()

# %%
# Modes far apart
# ---------------
# Three clusters, eight deviations apart, of equal weight (two hidden units; both on at
# once is as good as impossible). Gibbs steps do not cross: chains from noise end where
# the slope takes them, and stay. Replicas at lower inverse temperatures cross. So do
# Gibbs-Langevin proposals of a high temperature that are tested at temperature 1: they
# are global moves, of which few are taken and all are exact. (In many dimensions none
# would be.)

apart = grbm.GRBM(2, 2)
with torch.no_grad():
    apart.W.copy_(torch.tensor([[8.0, -8.0], [0.0, 3.0]]))
    apart.b.copy_(-0.5 * apart.W.square().sum(0))
parts = exact.mixture(apart)
# Where tempered paths begin: as wide as the data would be.
wide = grbm.Base(torch.zeros(2), torch.full((2,), 40.0))
global_moves = grbm.GibbsLangevin(
    10, adjust_from=0, temperature=100, accept_temperature=1
)
crossing = {
    "tempered": grbm.ParallelTempering(wide).tuned(apart.freeze()),
    "wide moves": global_moves,
}
for name, sampler in {"Gibbs": grbm.Gibbs(), **crossing}.items():
    v = grbm.sample(apart, sampler, n_chains=2000, n_steps=300, seed=0).v
    nearest = torch.cdist(v, parts.means[:3].float()).argmin(1)
    shares = nearest.bincount(minlength=3) / len(v)
    found = mixing.diagnose(
        mixing.record(
            apart, sampler, v[:8], n_chains=8, n_draws=300, every=1, burn_in=100, seed=0
        )
    )
    shares = [round(x, 2) for x in shares.tolist()]
    print(f"{name:11} shares from noise {shares}; {found.verdict}")

# %%
# ``grbm mixing RUN`` asks the last question of any trained run.
