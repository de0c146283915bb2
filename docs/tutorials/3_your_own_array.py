"""
Your own array: a density model of a table
==========================================

A table of measurements, one row per sample: here scikit-learn's 178 wines with 13 properties each. What is wanted is
a density: to see which samples are unusual, and to draw new ones.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from grbm import GaussianBernoulliRBM

wine = load_wine()
train, test = train_test_split(wine.data, test_size=0.3, random_state=0, stratify=wine.target)

# %%
# A GRBM learns from features of mean 0 and deviation 1, so it goes into a pipeline behind a ``StandardScaler``. Up to
# 20 components likelihoods are exact, and few rows call for few components anyway.

pipeline = make_pipeline(StandardScaler(), GaussianBernoulliRBM(8, min_variance=0.1, random_state=0)).fit(train)
scaler, rbm = pipeline
print(f"held-out log-likelihood {pipeline.score(test):.2f} nats per wine ({rbm.log_partition().method})")
for k in (1, 3):
    mixture = make_pipeline(StandardScaler(), GaussianMixture(k, random_state=0)).fit(train)
    print(f"  {k} Gaussian{'s' * (k > 1)} with full covariance: {mixture.score(test):.2f}")

# %%
# These are densities of the *standardised* features. In the units of the data they are lower by the sum of the
# logarithms of the scales, which is the same number for every row and every model behind the same scaler:

print(f"in the wines' own units: {pipeline.score(test) - np.log(scaler.scale_).sum():.2f}")

# %%
# Unusual rows
# ------------

scores = pipeline.score_samples(wine.data)
strange = np.argsort(scores)[:3]
for row in strange:
    feature = np.abs(scaler.transform(wine.data[row : row + 1]))[0].argmax()
    print(f"wine {row}: {scores[row]:.1f} nats; {wine.feature_names[feature]} = {wine.data[row, feature]:g}")

# %%
# New samples
# -----------
# Two of the properties, of wines and of as many samples drawn from the model.

drawn = scaler.inverse_transform(rbm.sample(len(wine.data)))
i, j = wine.feature_names.index("flavanoids"), wine.feature_names.index("color_intensity")
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharex=True, sharey=True, layout="constrained")
axes[0].scatter(wine.data[:, i], wine.data[:, j], s=8, c=wine.target)
axes[1].scatter(drawn[:, i], drawn[:, j], s=8, color="gray")
for axis, title in zip(axes, ("wines", "drawn from the model"), strict=True):
    axis.set(title=title, xlabel="flavanoids")
axes[0].set(ylabel="colour intensity")
plt.show()

# %%
# From the command line: ``numpy.save("wine.npy", wine.data)``, then ``grbm train array --data wine.npy``. That also
# works for arrays larger than memory, on a GPU, and on several machines.
