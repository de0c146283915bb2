"""The engine of a CUDA device: products on tensor cores, tails fused in Triton, each walk one CUDA graph.

Its coordinates and buffers are those of `cuda_buffers.py`, its kernels those of `kernels.py`. They also run in Triton's
interpreter on a CPU (TRITON_INTERPRET=1), which is how they are tested without a GPU.
"""

from torch import Tensor

from grbm.core.randomness import Blocks, Rng
from grbm.model import GRBM, Energy, TemperedEnergy
from grbm.samplers.chains import Chains, Walk, Walked
from grbm.samplers.engines import cuda_buffers, cuda_given, cuda_ladder, cuda_learning
from grbm.samplers.engines.cuda_buffers import on, product, set_for
from grbm.samplers.engines.cuda_walk import shape_of, walker
from grbm.samplers.engines.definition import Followers, LearningEngine, Measured, Sums
from grbm.samplers.moments import Pooled
from grbm.samplers.moves import Moves


class Cuda(LearningEngine):
    """The kernels on a GPU: chains under one untempered energy, and ladders. The host waits for nothing."""

    name = "fused"

    def run(self, energy: Energy, moves: Moves, walk: Walk, rng: Rng) -> Walked:
        v, n_steps, burn_in, *_ = walk
        if energy.is_tempered or v.ndim != 2:
            return super().run(energy, moves, walk, rng)
        w = walker(shape_of(energy, moves, walk))
        with set_for(energy.precision, energy.W.device):
            sigma = w.prepare(energy, moves, walk, rng)
            w.replay(w.run)
            logits = product(w.operand[w.slot], w.V) + w.c
        last_v = energy.mu + sigma * w.u[w.slot]
        chains = Chains(last_v, w.h[w.slot].to(energy.W, copy=True), logits.sigmoid())
        sums = None if burn_in is None else w.sums_in_v(energy.mu, sigma, len(v) * (n_steps - burn_in))
        accept_prob = w.accept_prob()
        return Walked(chains, sums, accept_prob, None if accept_prob is None else accept_prob.mean())

    def learn(
        self, model: GRBM, energy: Energy, moves: Moves, data: Walk, walk: Walk, rng: Blocks, first: int, *,
        centred: bool,
    ) -> tuple[Tensor, Pooled, Tensor]:  # fmt: skip
        with on(energy.W.device):
            return cuda_learning.learn(model, energy, moves, data, walk, rng, first, centred=centred)

    def descend(self, followers: Followers, factor: Tensor, broken: Tensor | None) -> None:
        with on(factor.device):
            cuda_learning.descend(followers, factor, broken)

    def draw(self, kind: str, shape: tuple[int, int], like: Tensor, rng: Rng) -> Tensor:
        with on(like.device):
            return cuda_buffers.draw(kind, shape, rng, like.device)

    def run_ladder(self, ladder: TemperedEnergy, moves: Moves, walk: Walk, rng: Rng) -> Walked | None:
        with on(ladder.W.device):
            return cuda_ladder.run_ladder(ladder, moves, walk, rng) if moves.is_plain else None

    def run_given(self, energy: Energy, measured: Measured, walk: Walk, rng: Rng) -> tuple[Chains, Sums | None] | None:
        if energy.is_tempered or walk.v.ndim != 2 or not len(walk.v):
            return None
        with on(energy.W.device):
            return cuda_given.run_given(energy, measured, walk, rng)
