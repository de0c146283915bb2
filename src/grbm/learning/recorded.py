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
from grbm.learning.guard import kept, looks, overshoot
from grbm.learning.objectives import CD, PCD, ModifiedCD, Objective
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
        and type(objective) in (CD, PCD, ModifiedCD)
        and isinstance(objective.sampler, MoveSampler)
        and not options.anneal_step_size
        and is_plain(state.optimizer)
        and not has_own(model)
    )


class Recorded:
    """Updates of ``state`` by ``step(rows, rng, weight)``, the first one as it is, then a recording of it.

    Every update has as many rows, (B, N). The step is made as it is, too, where a look at the numbers finds something
    wrong, so that it says so, and where a GPU refuses to record it. A model, average, chains or optimizer that somebody
    has put in the place of those recorded are recorded anew.
    """

    def __init__(
        self, state: TrainState, objective: Objective, options: FitOptions, group: ProcessGroup, step: Step
    ) -> None:
        self.state, self.objective, self.options, self.group, self.step = state, objective, options, group, step
        self._is_warm, self._refused = False, False  # a first update compiles the kernels
        self._replay: Callable[[], None] | None = None
        self._bound: list[object] = []
        self._chains: Tensor | None = None

    @torch.no_grad()
    def update(self, data: Tensor | Rows, rows: Tensor) -> StepMetrics:
        """Make the next update, on ``rows`` (B,) of the data (n, N)."""
        state, model = self.state, self.state.model
        self._take_up_chains()
        if not self._is_bound():
            self._replay, self._is_warm = None, False
        looked = looks(state.update, model.W)
        if self._replay is None and self._is_warm and not self._refused and not looked:
            self._record(len(rows))
        energy = model.freeze() if looked else None
        overshoots = energy is not None and overshoot(state.update, energy, self.objective.sampler) is not None
        if self._replay is None or overshoots:
            return self._as_it_is(data[rows])
        if isinstance(data, Tensor):
            torch.index_select(data, 0, rows, out=self._rows)
        else:
            self._rows.copy_(data[rows])
        self._seed.fill_(seed_of(state.seed, "update", state.update))
        for place, parameters in zip(self._rates, state.optimizer.param_groups, strict=True):
            place.fill_(parameters["lr"])
        if self.options.average_decay is not None:
            self._weight.fill_(average_weight(state.update + 1, self.options.average_decay))
        before = chains = None
        if energy is not None:
            before, chains = kept(model, energy), None if self._chains is None else self._chains.clone()
        self._replay()
        self.group.heed_own()
        if before is not None:
            if state.guard.broken:
                if chains is not None:
                    state.persistent = chains
                return self._as_it_is(data[rows])  # which finds the same, and says it
            state.guard.last_good = before
        state.update += 1
        found, negative = self._metrics, self._metrics.negative
        rate = None if found.accept_rate is None else found.accept_rate.clone()
        negative = negative._replace(v=negative.v.clone(), persistent=state.persistent, accept_rate=rate)
        norm, mean_h = found.grad_norm.clone(), found.data_mean_h.clone()
        return found._replace(grad_norm=norm, data_mean_h=mean_h, accept_rate=rate, negative=negative)

    def _as_it_is(self, v_data: Tensor) -> StepMetrics:
        """Make the update without the recording."""
        metrics = self.step(v_data, None, None)
        self._take_up_chains()
        self._is_warm = True
        if self._replay is None:
            self._bound = self._parts()
        return metrics

    def _take_up_chains(self) -> None:
        """Copy chains that others have made, such as an update of fewer rows, to where the recording has its own."""
        own, others = self._chains, self.state.persistent
        if self._replay is None or own is None or others is None or others is own or others.shape != own.shape:
            return
        own.copy_(others)
        self.state.persistent = own

    def _parts(self) -> list[object]:
        """All that a recording reads and writes, beside its own: it is of no use for others."""
        state = self.state
        found = [state.model, state.average, state.persistent, state.guard.broken, state.optimizer]
        machines = [machine for machine in (state.model, state.average) if machine is not None]
        memory = [x.data_ptr() for machine in machines for x in (*machine.parameters(), *machine.buffers())]
        return [*found, len(state.optimizer.param_groups), is_plain(state.optimizer), *memory]

    def _is_bound(self) -> bool:
        """Whether the parts are those that were there after the last update."""
        now = self._parts()
        same = (a == b if isinstance(a, int) else a is b for a, b in zip(now, self._bound, strict=False))
        return len(now) == len(self._bound) and is_plain(self.state.optimizer) and all(same)

    def _record(self, n_rows: int) -> None:
        state, like = self.state, self.state.model.W
        self._rows = like.new_zeros(n_rows, state.model.n_visible)
        self._seed = torch.zeros((), dtype=torch.int64, device=like.device)
        self._rates = [like.new_zeros(()) for _ in state.optimizer.param_groups]
        self._weight = like.new_zeros(())
        if state.persistent is not None:
            state.persistent = state.persistent.clone()  # which metrics of the last update may hold
        n_blocks = self.options.n_blocks(n_rows, self.objective.n_chains)
        chains = self._chains = state.persistent

        def run() -> None:
            before, rates = state.update, [parameters["lr"] for parameters in state.optimizer.param_groups]
            try:
                for parameters, rate in zip(state.optimizer.param_groups, self._rates, strict=True):
                    parameters["lr"] = rate
                self._metrics = self.step(self._rows, Blocks(self._seed, n_blocks, device=like.device), self._weight)
                if chains is not None and state.persistent is not None:
                    chains.copy_(state.persistent)
            finally:
                for parameters, rate in zip(state.optimizer.param_groups, rates, strict=True):
                    parameters["lr"] = rate
                state.persistent, state.update = chains, before

        try:
            self._replay = self._recording(run)
        except RuntimeError as error:  # of CUDA, where something waits for the device
            logging.getLogger("grbm").warning("Updates are not recorded as a CUDA graph, and are slower: %s", error)
            self._refused = True
        self._bound = self._parts()

    def _recording(self, run: Callable[[], None]) -> Callable[[], None]:
        """Replay of ``run``; on a CPU that is to run it again."""
        if self.state.model.W.device.type != "cuda":
            return run
        from grbm.samplers.engines.cuda_buffers import holding, on

        graph, device = torch.cuda.CUDAGraph(), self.state.model.W.device
        with on(device), holding() as self._held:
            where = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # the one that PyTorch would take may be of another device
            with torch.cuda.graph(graph, stream=where, capture_error_mode="thread_local"):
                run()

        def replay() -> None:
            with on(device):
                graph.replay()

        return replay


def average_weight(update: int, decay: float) -> float:
    """Weight of the present parameters in their average: 1 − d, with d growing to ``decay`` over ``update`` updates.

    So the start is forgotten.
    """
    return 1 - min(decay, (1 + update) / (10 + update))
