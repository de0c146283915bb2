"""
A table with gaps, and rows that do not fit
===========================================

A table of measurements is seldom complete, and some of its rows are wrong. This
tutorial learns a density from rows with gaps, fills the gaps, says how sure that is,
draws some columns given others, and finds rows that are unlikely.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas
from sklearn.datasets import load_iris

from grbm import GaussianBernoulliRBM

# %%
# The table
# ---------
# 150 flowers, four lengths in centimetres. A quarter of the values are removed at
# random, and two are moved to a wrong column, as happens when a table is typed.

whole = load_iris(as_frame=True).data
whole.columns = ["sepal length", "sepal width", "petal length", "petal width"]
rng = np.random.default_rng(0)
typed = whole.copy()
swapped = ["petal length", "sepal length"]
typed.loc[20, swapped[::-1]] = typed.loc[20, swapped].to_numpy()
typed.loc[110, ["sepal width", "petal width"]] = [1.0, 3.2]
gaps = rng.random(typed.shape) < 0.25
gaps[[20, 110]] = False
table = typed.mask(gaps)
n_gaps, n_complete = int(gaps.sum()), int((~gaps.any(1)).sum())
print(
    f"{n_gaps} of {gaps.size} values are missing;",
    f"{n_complete} of 150 rows are complete.",
)

# %%
# Learning
# --------
# ``fit`` takes the gaps as they are. While it learns, it draws the missing values again
# and again from the model itself, given what is known of their rows. ``coarse="auto"``
# finds that lengths are multiples of a millimetre.

rbm = GaussianBernoulliRBM(coarse="auto", random_state=0).fit(table)

# %%
# Filling gaps
# ------------
# ``impute`` fills each gap with its conditional mean, rounded to a millimetre; with
# ``return_std`` it also says how far the truth may be away.

rbm.set_output(transform="pandas")
filled, std = rbm.impute(table, return_std=True)
error = (filled - whole)[gaps].stack()
rmse, by_means = np.sqrt((error**2).mean()), whole.std().mean()
print(f"root mean square error {rmse:.2f} cm, and {by_means:.2f} cm by column means")
inside = (filled - whole).abs() <= 1.645 * std.clip(lower=0.03)
share = inside.to_numpy()[gaps].mean()
print(f"{share:.0%} of the missing values lie within 1.645 deviations (90 % should)")

# %%
# Draws of some columns given others
# ----------------------------------
# How large are the petals of a flower whose sepals are 6 cm long and 3 cm wide? There
# are two kinds of such flowers.

given = pandas.DataFrame([[6.0, 3.0, np.nan, np.nan]], columns=table.columns)
petals = rbm.sample(1000, given=given)
figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
jitter = rng.uniform(-0.05, 0.05, size=(1000, 2))
axis.scatter(
    whole["petal length"], whole["petal width"], s=10, color="gray", label="all flowers"
)
axis.scatter(
    *(petals[["petal length", "petal width"]].to_numpy() + jitter).T,
    s=4,
    alpha=0.3,
    label="draws",
)
axis.set(
    xlabel="petal length, cm",
    ylabel="petal width, cm",
    title="Petals, given the sepals",
)
axis.legend(fontsize=8)

# %%
# Rows that do not fit
# --------------------
# A p-value is the share of the model's own draws that are less likely than a row. Rows
# with gaps are compared by what is known of them. The two rows that were typed wrong
# come first.

p_values = rbm.p_values(table)
first = np.argsort(p_values, kind="stable")[:4]
for row in first:
    print(f"row {row:3d}: p = {p_values[row]:.4f}   {table.iloc[row].to_dict()}")

# %%
# ``surprises`` shows why: the distance of each number from its mean given the others of
# its row, in standard deviations.

away = rbm.surprises(table.iloc[first], random_state=0)
print(away.round(1).to_string())

# %%
# ``predict`` calls a row an anomaly, −1, if it is less likely than 99 of 100 draws.

print("anomalies:", np.flatnonzero(rbm.predict(table) == -1))
