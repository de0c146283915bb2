"""
Values below a detection limit
==============================

A laboratory reports 0.5 wherever a concentration is 0.5 or less. Many tables have such
limits: rainfall that is 0, scores at the top of a scale, black pixels. A model that
takes the reported values for the true ones learns the wrong means, widths and
correlations. This tutorial shows how to tell the model about a limit.
"""

import matplotlib.pyplot as plt
import numpy as np

from grbm import GaussianBernoulliRBM

# %%
# Two substances in 4,000 samples
# -------------------------------
# Their logarithmic concentrations are correlated. Both are censored: a value below the
# limit is reported as the limit.

rng = np.random.default_rng(0)
covariance = np.array([[1.0, 0.8], [0.8, 1.0]])
latent = rng.multivariate_normal([0.3, -0.2], covariance, size=4000)
limit = 0.0
reported = np.maximum(latent, limit)
for name, share in zip(("first", "second"), (reported == limit).mean(0), strict=True):
    print(f"{name} substance: {share:.0%} of the values are reported as the limit")

# %%
# The censored model
# ------------------
# ``censor=(low, high)`` gives the limits; ``censor="auto"`` finds columns in which many
# values equal the lowest or the highest. The model describes latent values v, and a
# measurement is x = clip(v, low, high). While it learns, it draws what lies beyond a
# limit from the model itself, given everything else in the row.

plain = GaussianBernoulliRBM(8, whiten=False, random_state=0).fit(reported)
censored = GaussianBernoulliRBM(8, censor=(limit, None), random_state=0).fit(reported)


def below(x):
    """Share of the values at the limit or below it."""
    return (x <= limit).mean(0)


drawn = {"plain": plain.sample(4000), "censored": censored.sample(4000)}
print("share at the limit or below, by substance:")
print(f"  data      {below(reported).round(2)}")
for name, x in drawn.items():
    print(
        f"  {name:<9} {below(x).round(2)},",
        f"of which exactly at the limit {(x == limit).mean(0).round(2)}",
    )

# %%
# Samples of the censored model have exact limits in the right share. The plain model
# spreads this mass on both sides of the limit, where no value can be.

figure, axes = plt.subplots(
    1, 3, figsize=(10, 3.4), sharex=True, sharey=True, layout="constrained"
)
for axis, (title, x) in zip(axes, {"reported": reported, **drawn}.items(), strict=True):
    axis.scatter(x[:1500, 0], x[:1500, 1], s=4, alpha=0.4)
    axis.axvline(limit, color="gray", lw=0.8)
    axis.axhline(limit, color="gray", lw=0.8)
    axis.set(title=title, xlabel="first substance")
axes[0].set_ylabel("second substance")

# %%
# Likelihoods
# -----------
# A value inside the limits has a density, a value at a limit the probability of lying
# there or beyond. ``score`` adds both, so scores of models with the same limits can be
# compared. With at most twelve hidden units they are exact.

nats = censored.score(reported[:1000])
print(f"mean log-likelihood of the censored model: {nats:.3f} nats")

# %%
# Where a value was not measured at all, ``impute`` gives the mean of what would have
# been reported.

row = np.array([[1.5, np.nan]])
filled = censored.impute(row, random_state=0)[0, 1]
print(f"second substance, given 1.5 of the first: {filled:.2f}")

# %%
# From the command line: ``grbm train x.csv`` reads marks such as ``<0.5`` in a text
# file as limits of columns, and ``--dataset.censor auto`` finds columns that stop.
