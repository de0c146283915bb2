"""An update as one CUDA graph: recorded once, then replayed, so that a GPU never waits for the host.

What changes from update to update lies in tensors that the host fills before: the rows, the seed of the update's random
numbers, the learning rates, and the weight of the average. Everything else follows on the device.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from grbm.core.distributed import ProcessGroup
from grbm.core.options import FitOptions
from grbm.core.randomness import Blocks, seed_of
from grbm.core.rows import Rows
from grbm.learning.descent import has_own, is_plain
from grbm.learning.guard import looks
from grbm.learning.objectives import Contrastive, Objective
from grbm.learning.state import StepMetrics, TrainState
from grbm.samplers import MoveSampler
from grbm.samplers.engines import engine_on

Step = Callable[[Tensor, Blocks | None, float | Tensor | None], StepMetrics]


def can_record(state: TrainState, objective: Objective, options: FitOptions, group: ProcessGroup) -> bool:
    """Whether all that an update does is done by a GPU: nothing is looked at, exchanged or adapted on the way."""
    model = state.model
    return (
        model.W.dtype == torch.float32
        and engine_on(model.W.device).name == "fused"
        and group.world_size == 1
        and model.contrasts.n == 1
        and isinstance(objective, Contrastive)
        and type(objective).negative is Contrastive.negative
        and isinstance(objective.sampler, MoveSampler)
        and not options.anneal_step_size
        and is_plain(state.optimizer)
        and not has_own(model)
    )


class Recorded:
    """Updates of ``state`` by ``step(rows, rng, weight)``, the first one as it is, then a recording of it.

    Every update has as many rows, (B, N). The step is made as it is, too, where numbers are looked at and found wrong,
    so that it says so, and where a GPU refuses to record it. Tensors of `StepMetrics` hold until the next update.
    """

    def __init__(
        self, state: TrainState, objective: Objective, options: FitOptions, group: ProcessGroup, step: Step
    ) -> None:
        self.state, self.objective, self.options, self.group, self.step = state, objective, options, group, step
        self._is_warm, self._refused = False, False  # a first update compiles the kernels
        self._replay: Callable[[], None] | None = None
        self._bound: tuple[object, ...] = ()

    def update(self, data: Tensor | Rows, rows: Tensor) -> StepMetrics:
        """Make the next update, on ``rows`` (B,) of the data (n, N)."""
        state = self.state
        if self._bound != self._parts():
            self._replay = None
        looked = looks(state.update, state.model.W)
        if self._replay is None and self._is_warm and not self._refused and not looked:
            self._record(len(rows))
        stands = not looked or state.guard.stands(state.model, self.objective.sampler, state.update)
        if self._replay is None or not stands:
            metrics = self.step(data[rows], None, None)
            self._is_warm, self._bound = True, self._parts()
            return metrics
        if isinstance(data, Tensor):
            torch.index_select(data, 0, rows, out=self._rows)
        else:
            self._rows.copy_(data[rows])
        self._seed.fill_(seed_of(state.seed, "update", state.update))
        for place, parameters in zip(self._rates, state.optimizer.param_groups, strict=True):
            place.fill_(parameters["lr"])
        state.update += 1
        if self.options.average_decay is not None:
            self._weight.fill_(average_weight(state.update, self.options.average_decay))
        self._replay()
        self.group.heed_own()
        found = self._metrics
        rate = None if found.accept_rate is None else found.accept_rate.clone()
        norm, mean_h = found.grad_norm.clone(), found.data_mean_h.clone()
        return found._replace(grad_norm=norm, data_mean_h=mean_h, accept_rate=rate)

    def _parts(self) -> tuple[object, ...]:
        """What a recording reads and writes, by identity: another model, average or chains need another recording."""
        state = self.state
        return tuple(map(id, (state.model, state.average, state.persistent, state.guard.broken, state.optimizer)))

    def _record(self, n_rows: int) -> None:
        state, like = self.state, self.state.model.W
        self._rows = like.new_zeros(n_rows, state.model.n_visible)
        self._seed = torch.zeros((), dtype=torch.int64, device=like.device)
        self._rates = [like.new_zeros(()) for _ in state.optimizer.param_groups]
        self._weight = like.new_zeros(())
        if state.persistent is not None:
            state.persistent = state.persistent.clone()  # which metrics of the last update may hold
        n_blocks = self.options.n_blocks(n_rows, self.objective.n_chains)
        chains = state.persistent

        def run() -> None:
            before = state.update
            self._metrics = self.step(self._rows, Blocks(self._seed, n_blocks, device=like.device), self._weight)
            if chains is not None and state.persistent is not None:
                chains.copy_(state.persistent)
            state.persistent, state.update = chains, before

        before, rates = state.update, [parameters["lr"] for parameters in state.optimizer.param_groups]
        for parameters, rate in zip(state.optimizer.param_groups, self._rates, strict=True):
            parameters["lr"] = rate
        try:
            self._replay = self._recording(run)
        except RuntimeError as error:  # of CUDA, where something waits for the device
            logging.getLogger("grbm").warning("Updates are not recorded as a CUDA graph, and are slower: %s", error)
            self._refused, state.update, state.persistent = True, before, chains
        finally:
            for parameters, rate in zip(state.optimizer.param_groups, rates, strict=True):
                parameters["lr"] = rate
        self._bound = self._parts()

    def _recording(self, run: Callable[[], None]) -> Callable[[], None]:
        """Replay of ``run``; on a CPU that is to run it again."""
        if self.state.model.W.device.type != "cuda":
            return run
        from grbm.samplers.engines.cuda_buffers import holding

        graph = torch.cuda.CUDAGraph()
        with holding() as self._held, torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
        return graph.replay


def average_weight(update: int, decay: float) -> float:
    """Weight of the present parameters in their average: 1 − d, with d growing to ``decay`` over ``update`` updates.

    So the start is forgotten.
    """
    return 1 - min(decay, (1 + update) / (10 + update))
