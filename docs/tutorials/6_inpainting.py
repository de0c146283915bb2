"""
Inpainting: what is missing, what is noise
==========================================

A density model knows what usually goes with what. Here it fills in the lower halves of
digits, says how sure it is, and takes away noise of a known size.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import grbm
from grbm import GaussianBernoulliRBM

train, test = train_test_split(load_digits().data, test_size=0.3, random_state=0)
scaler = StandardScaler().fit(train)
rbm = GaussianBernoulliRBM(
    256, n_iter=250, n_replicas=1, whiten=False, random_state=0
).fit(scaler.transform(train))

# %%
# Half a digit
# ------------
# NaN marks what is missing. ``impute`` fills it with its mean given the rest: chains
# move the missing pixels and the hidden units, and the pixels that are known stay where
# they are.

truth = scaler.transform(test)
halves = truth.copy()
halves[:, 32:] = np.nan
filled = rbm.impute(halves)
for name, guess in (("the pixels' means", np.zeros_like(truth)), ("impute", filled)):
    error = np.square(guess - truth)[:, 32:].mean()
    print(f"mean squared error of the lower halves, {name}: {error:.2f}")


def show(axis, rows, title):
    """Twelve standardised rows as a strip."""
    strip = np.nan_to_num(
        scaler.inverse_transform(rows[:12]).reshape(-1, 8, 8), nan=8
    ).transpose(1, 0, 2)
    axis.imshow(strip.reshape(8, -1), cmap="gray", vmin=0, vmax=16)
    axis.set(xticks=[], yticks=[])
    axis.set_ylabel(title, rotation=0, ha="right", va="center")


figure, axes = plt.subplots(3, 1, figsize=(8, 2.6), layout="constrained")
for axis, rows, title in zip(
    axes, (truth, halves, filled), ("digit", "given", "filled in"), strict=True
):
    show(axis, rows, title)
plt.show()

# %%
# More than one answer
# --------------------
# A mean hides that there may be several ways to go on. `grbm.Conditional` draws them;
# tempering it lets chains go from one to another.

given = torch.tensor(halves[:12]).float()
sampler = grbm.ParallelTempering(n_replicas=24, sampler=grbm.Conditional(given))
figure, axes = plt.subplots(4, 1, figsize=(8, 3.4), layout="constrained")
show(axes[0], halves, "given")
for seed, axis in enumerate(axes[1:]):
    drawn = grbm.sample(rbm.to_model(), sampler, n_chains=12, n_steps=200, seed=seed).v
    show(axis, drawn.numpy(), f"draw {seed + 1}")
plt.show()

# %%
# And how sure it is: mean and deviation of every missing pixel. Where the deviation is
# larger, the guess is worse.

sure = grbm.impute(rbm.to_model(), torch.tensor(halves).float())
miss = np.abs(sure.mean.numpy() - truth)[:, 32:]
std = sure.std.numpy()[:, 32:]
for low, high in ((0, 0.5), (0.5, 1), (1, 2)):
    here = (std >= low) & (std < high)
    print(
        f"deviation {low} to {high}: {here.mean():4.0%} of the pixels,",
        f"mean miss {miss[here].mean():.2f}",
    )

# %%
# Noise
# -----

noisy = truth + np.random.default_rng(0).normal(size=truth.shape)
clean = rbm.denoise(noisy, noise_std=1.0)
for name, rows in (("noisy", noisy), ("denoised", clean)):
    print(f"mean squared error, {name}: {np.square(rows - truth).mean():.2f}")
figure, axes = plt.subplots(3, 1, figsize=(8, 2.6), layout="constrained")
for axis, rows, title in zip(
    axes, (truth, noisy, clean), ("digit", "with noise", "denoised"), strict=True
):
    show(axis, rows, title)
plt.show()

# %%
# For files: ``grbm impute RUN FILE.npy`` and ``--noise-std 0.1``.
