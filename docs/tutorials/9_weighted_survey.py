"""
A weighted survey
=================

In a survey some people are asked more often than others, and weights say for how many
each of them stands. This tutorial learns the density of the population from such a
sample.
"""

import matplotlib.pyplot as plt
import numpy as np

from grbm import GaussianBernoulliRBM

# %%
# The population and the sample
# -----------------------------
# Of 20,000 people two in five live in the country. They are older and earn less. Of
# every hundred people in a town eight are asked, of every hundred in the country one:
# the sample is mostly of town people.

rng = np.random.default_rng(0)
country = rng.random(20_000) < 0.4
age = np.where(country, rng.normal(58, 9, 20_000), rng.normal(36, 8, 20_000))
income = np.where(country, 22, 34) + 0.15 * (age - 45) + rng.normal(0, 4, 20_000)
population = np.column_stack([age, income])
asked = rng.random(20_000) < np.where(country, 0.01, 0.08)
sample, weight = population[asked], np.where(country, 100.0, 12.5)[asked]
n, share = len(sample), country[asked].mean()
worth = weight.sum() ** 2 / (weight**2).sum()
print(f"{n:,} people are asked, {share:.0%} of them in the country. With these")
print(f"weights they tell as much as {worth:.0f} of equal weight would.")

# %%
# Learning with weights and without
# ---------------------------------
# ``sample_weight`` makes a row count as often as its weight says.

plain = GaussianBernoulliRBM(16, random_state=0).fit(sample)
weighted = GaussianBernoulliRBM(16, random_state=0).fit(sample, sample_weight=weight)

# %%
# What both say of the population
# -------------------------------
# Samples of the weighted model have the means of the population, and a share of old
# people as large as there.


def described(rows: np.ndarray) -> str:
    (age, income), old = rows.mean(0), (rows[:, 0] > 60).mean()
    return f"mean age {age:.1f}, mean income {income:.1f}, above 60: {old:.0%}"


drawn = {"without weights": plain.sample(4000), "with weights": weighted.sample(4000)}
print(f"{'the population':<16}{described(population)}")
for name, rows in drawn.items():
    print(f"{name:<16}{described(rows)}")

# %%
# The log-likelihood of people who were not asked is higher too.

others = population[~asked][:2000]
for name, rbm in (("without weights", plain), ("with weights", weighted)):
    print(f"{name:<16}{rbm.score(others):.2f} nats for each person of the population")

# %%
# The figure
# ----------

shown = {"the population": population[:1500], **drawn}
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharex=True, sharey=True)
figure.set_layout_engine("constrained")
for axis, (name, rows) in zip(axes, shown.items(), strict=True):
    axis.scatter(*rows[:1500].T, s=3, alpha=0.4)
    axis.set(title=name, xlabel="age, years")
axes[0].set_ylabel("income, thousands")
plt.show()
