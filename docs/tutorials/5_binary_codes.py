"""
Binary codes for a classifier
=============================

The hidden units turn real numbers into binary ones. A linear classifier reads labels
off them better than off the pixels: the GRBM has learned, without labels, what digits
are made of.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from grbm import GaussianBernoulliRBM

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.3, random_state=0, stratify=y
)

rbm = GaussianBernoulliRBM(
    256, n_iter=250, n_replicas=1, restart=0.1, n_chains=256, random_state=0
)
pixels = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
codes = make_pipeline(StandardScaler(), rbm, LogisticRegression(max_iter=2000))
print(f"pixels: {pixels.fit(X_train, y_train).score(X_test, y_test):.4f}")
print(f"codes:  {codes.fit(X_train, y_train).score(X_test, y_test):.4f}")

# %%
# (Digits are one connected cloud, so chains need no tempering here, ``n_replicas=1``,
# and learning is several times as fast. `docs/results` has this comparison
# cross-validated, with ``BernoulliRBM`` beside it.)
#
# Few labels
# ----------
# The machine has seen all training images; the classifier sees labels of some.

sizes = [20, 50, 100, 300, len(y_train)]
accuracy = {"pixels": [], "codes": []}
scaler, rbm, _ = codes
for n in sizes:
    few = np.random.default_rng(0).permutation(len(y_train))[:n]
    for name, features in (
        ("pixels", scaler.transform),
        ("codes", lambda rows: rbm.transform(scaler.transform(rows))),
    ):
        classifier = LogisticRegression(max_iter=2000).fit(
            features(X_train[few]), y_train[few]
        )
        accuracy[name].append(classifier.score(features(X_test), y_test))
figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, values in accuracy.items():
    axis.plot(sizes, values, marker="o", label=name)
axis.set(xscale="log", xlabel="labelled digits", ylabel="test accuracy")
axis.legend()
plt.show()

# %%
# Bits
# ----
# Codes can be drawn instead of kept as probabilities: bits, eight to a byte.

probabilities = rbm.transform(scaler.transform(X_test))
bits = np.random.default_rng(0).random(probabilities.shape) < probabilities
packed = np.packbits(bits, axis=1)
print(
    f"{X_test[0].nbytes} bytes of pixels -> {packed.shape[1]} bytes;",
    f"{bits.mean():.0%} of the bits are on",
)
error = np.square(rbm.inverse_transform(bits) - scaler.transform(X_test)).mean()
print(f"mean squared error of pixels from the bits: {error:.2f} (1 without them)")

# %%
# ``grbm encode RUN DATA --packed`` writes the codes of files, also larger than memory.
