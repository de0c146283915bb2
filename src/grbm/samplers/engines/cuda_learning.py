"""Both phases of an update and its gradient on a CUDA device, in the coordinates of `cuda_buffers.py`.

With d for the data's mean less that of the chains, ū and m the data's means of u and h, and p = μ/σ,

    ∂W = (1/σ) (d(u hᵀ) + p dhᵀ), or centred (1/σ) (d(u hᵀ) − ū dhᵀ − du mᵀ),
    ∂b = dh,  ∂μ = du/σ,  ∂log σ² = ½ du² − Σ_j W_ij ∂W_ij, not centred,

and centred ∂b and ∂μ lose what `grbm.samplers.moments.centre` takes from them: the gradient needs one pass over sums.
"""

import functools

import torch
import triton
from torch import Tensor

from grbm.core.randomness import Blocks
from grbm.model import GRBM, Energy
from grbm.samplers.chains import Walk
from grbm.samplers.engines.cuda_buffers import SUMMED, TAIL, Shape, grid, hold, place_counters, set_for
from grbm.samplers.engines.cuda_walk import Walker, shape_of
from grbm.samplers.engines.definition import Followers
from grbm.samplers.engines.kernels import follow, other_slopes, slope
from grbm.samplers.gibbs import Gibbs
from grbm.samplers.moments import Pooled
from grbm.samplers.moves import Moves

BLOCK = 1024  # parameters that a program moves


class Learner:
    """Walks at the data and of the chains under one set of weights, and room for sums over ∂W."""

    def __init__(self, at_data: Shape, of_chains: Shape) -> None:
        self.data, self.chains = Walker(at_data), Walker(of_chains)
        self.data.V, self.data.c = self.chains.V, self.chains.c
        N, M, room = of_chains.n_visible, of_chains.n_hidden, self.chains.room
        T, S = grid(N, M, SUMMED)
        self.by_row, self.by_column = room(2, S, N), room(T, M)


@functools.lru_cache(maxsize=2)
@torch.inference_mode(False)
def learner(at_data: Shape, of_chains: Shape) -> Learner:
    """Return the learner of these shapes; each update overwrites its buffers."""
    return Learner(at_data, of_chains)


def learn(
    model: GRBM, energy: Energy, moves: Moves, data: Walk, walk: Walk, rng: Blocks, first: int, *, centred: bool
) -> tuple[Tensor, Pooled, Tensor]:
    """Make an update's phases and its gradient, as `grbm.samplers.engines.native_learning.learn`: no sums are kept."""
    assert walk.burn_in is not None
    B, C, (N, M) = len(data.v), len(walk.v), energy.W.shape
    both = learner(shape_of(energy, Gibbs().moves(energy, 1), data), shape_of(energy, moves, walk))
    hold(both)
    a, b = 1 / B, 1 / (C * (walk.n_steps - walk.burn_in))
    numbers = rng.philox(B)
    numbers.draw = first
    place_counters(both.data.state, numbers, B, 1)
    both.data.start(data.v, energy, both.data.u[0], both.data.operand[0])
    sigma = both.chains.prepare(energy, moves, walk, rng)  # for both
    with set_for(energy.precision, energy.W.device):
        for w in (both.data, both.chains):
            w.replay(w.run)
    grads = {name: p.new_empty(p.shape) for name, p in model.named_parameters()}
    (data_u, data_u2), (chains_u, chains_u2) = both.data.sums_u, both.chains.sums_u
    data_h, chains_h, var, mu = both.data.sum_h, both.chains.sum_h, energy.var, energy.mu
    slope[grid(N, M, SUMMED)](
        both.data.sum_uh, both.chains.sum_uh, data_u, chains_u, data_h, chains_h, energy.W.contiguous(), mu, var,
        grads["W"], both.by_row, both.by_column, a, b, N, M, centred, **SUMMED,
    )  # fmt: skip
    mean_h, data_v, chains_v2 = (x.new_empty(x.shape) for x in (data_h, mu, mu))
    other_slopes[(triton.cdiv(max(N, M), TAIL["BN"]),)](
        data_u, chains_u, data_u2, chains_u2, data_h, chains_h, mu, var, both.by_row.sum(1), both.by_column.sum(0),
        grads["b"], grads["mu"], grads["log_var"], mean_h, data_v, chains_v2, a, b, float(B), N, M, centred, TAIL["BN"],
    )  # fmt: skip
    for name, grad in grads.items():
        model.get_parameter(name).grad = grad
    rate = both.chains.accept_prob()
    pooled = Pooled(
        None, a * b, data_v, data_h, B, chains_v2, mean_h, None if rate is None else rate.mean(), swap_rate=None
    )
    last_v = torch.addcmul(mu, both.chains.u[both.chains.slot], sigma)
    return last_v, pooled, torch.nn.utils.get_total_norm(list(grads.values()))


def descend(followers: Followers, factor: Tensor, broken: Tensor | None) -> None:
    """`grbm.samplers.engines.definition.Engine.descend`, a pass for each parameter."""
    for x, rate, least in followers:
        stays = torch.zeros((), dtype=torch.bool, device=x.device) if broken is None else broken
        follow[(triton.cdiv(x.numel(), BLOCK),)](x, x.grad, rate, factor, stays, least, x.numel(), BLOCK)
    torch.autograd.graph.increment_version([x for x, _, _ in followers])
