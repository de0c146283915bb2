"""
Your own array: a density model of a table
==========================================

A table of measurements, one row per sample: here scikit-learn's 178 wines with 13
properties each. What is wanted is a density: to see which samples are unusual, and to
draw new ones.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

from grbm import GaussianBernoulliRBM
from grbm.evaluate.baselines import baselines, compare

wine = load_wine()
train, test = train_test_split(
    wine.data, test_size=0.3, random_state=0, stratify=wine.target
)

# %%
# Nothing has to be chosen, and columns may have any units: the estimator finds
# coordinates in which learning is easy, and holds out a tenth of the rows to keep the
# best model by. Densities are of the columns in their own units.

rbm = GaussianBernoulliRBM(random_state=0).fit(train)
log_z = rbm.log_partition()
print(
    f"held-out log-likelihood {rbm.score(test):.2f} nats per wine;",
    f"log Z ± {log_z.error:.2g}, {log_z.verdict}",
)

# %%
# A likelihood says little alone. The same rows under simpler models, each with the
# paired difference and its error:

ours = rbm.score_samples(test)
for baseline in baselines(train, test):
    found = compare(ours, log_z.error, baseline)
    above = f"{found.difference:+.2f} ± {found.difference_error:.2f}"
    name = f"{found.name:<22}{found.mean:8.2f}"
    print(f"  {name}   grbm minus this {above}: {found.verdict}")

# %%
# Unusual rows
# ------------

scores = rbm.score_samples(wine.data)
away = np.abs(wine.data - train.mean(0)) / train.std(0)
for row in np.argsort(scores)[:3]:
    feature = away[row].argmax()
    print(
        f"wine {row}: {scores[row]:.1f} nats;",
        f"{wine.feature_names[feature]} = {wine.data[row, feature]:g}",
    )

# %%
# New samples
# -----------
# Two of the properties, of wines and of as many samples drawn from the model.

drawn = rbm.sample(len(wine.data))
i, j = (
    wine.feature_names.index("flavanoids"),
    wine.feature_names.index("color_intensity"),
)
figure, axes = plt.subplots(
    1, 2, figsize=(8, 3.6), sharex=True, sharey=True, layout="constrained"
)
axes[0].scatter(wine.data[:, i], wine.data[:, j], s=8, c=wine.target)
axes[1].scatter(drawn[:, i], drawn[:, j], s=8, color="gray")
for axis, title in zip(axes, ("wines", "drawn from the model"), strict=True):
    axis.set(title=title, xlabel="flavanoids")
axes[0].set(ylabel="colour intensity")
plt.show()

# %%
# From the command line: ``grbm train wine.csv`` trains on a table in a file, and ``grbm
# score`` gives the log-density and a p-value of each row. Arrays (``wine.npy``) may be
# larger than memory.
