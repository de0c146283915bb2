"""Natural parameters of a GRBM, in which its log-likelihood is climbed best.

With λ = 1/σ², η = μ/σ² and U = W/σ², and but for a constant that cancels where energies are compared,

    −E(v, h) = Σ_i (η_i v_i − ½ λ_i v_i²) + v·U h + b·h:

an exponential family, in which the gradient is the difference of mean sufficient statistics, and where hidden units
turn on, b_j + U_j·v = 0, does not move as variances change (in W and σ² it does).
"""

import torch
from torch import Tensor

from grbm.model import Energy
from grbm.samplers.moments import Moments


def weights(energy: Energy) -> Tensor:
    """U (N, M)."""
    return energy.W / energy.var[:, None]


def vector(energy: Energy) -> Tensor:
    """U, b, η and log λ, one after the other (P,)."""
    return torch.cat([weights(energy).flatten(), energy.b, energy.mu / energy.var, -energy.var.log()])


def energy_of(vector: Tensor, n_visible: int, n_hidden: int) -> Energy:
    """The machine with natural parameters ``vector`` (P,)."""
    U, b, eta, log_precision = torch.split(vector, [n_visible * n_hidden, n_hidden, n_visible, n_visible])
    var = (-log_precision).exp()
    return Energy(var[:, None] * U.view(n_visible, n_hidden), b, var * eta, var)


def gradient(energy: Energy, difference: Moments) -> Tensor:
    """Of the log-likelihood by `vector`, from moments at the data minus those of the model (P,)."""
    return torch.cat([difference.vh.flatten(), difference.h, difference.v, -0.5 * difference.v2 / energy.var])
