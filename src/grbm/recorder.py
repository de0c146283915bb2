"""What a run in progress logs and saves, and when."""

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grbm import checkpoint, runs
from grbm.config import RunConfig
from grbm.distributed import Share
from grbm.errors import UserError
from grbm.evaluate.distance import energy_distance
from grbm.logs import Log, Record
from grbm.samplers.trajectory import swap_rate
from grbm.training import StepMetrics, TrainState


class Recorder:
    """The bookkeeping of a run in progress: what is logged, what is saved, and when."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        state: TrainState,
        share: Share,
        log: Log | None,
        run: str,
        notes: dict[str, Any],
        seen: Tensor,
        test: Tensor,
        paint: Callable[[Tensor], np.ndarray] | None,
    ) -> None:
        self.config, self.folder, self.state, self.share, self.log, self.run = config, folder, state, share, log, run
        self.clipped: Tensor | int = notes["clipped"]
        self.notes, self.seen, self.test, self.paint = notes, seen, test, paint
        self.started = time.perf_counter() - notes["seconds"]
        self.kept = runs.read_trajectory(folder, state.update)[-1:]  # the last model kept, and chains of it
        self.saved_at, self.saved_in, self.saved_update = time.perf_counter(), 0.0, state.update

    def after(self, metrics: StepMetrics) -> Record | None:
        """What follows an update: perhaps a record, a picture, a checkpoint. All processes come here together."""
        config, state, share = self.config, self.state, self.share
        n_updates, clip = config.train.n_updates, config.train.clip_norm
        self.clipped = self.clipped + (0 if clip is None else (metrics.grad_norm > clip).long())  # no waiting for a GPU
        self.notes["since"] += 1
        self._keep_model(metrics)
        record = None
        every = max(1, n_updates // config.log.points)
        if state.update % every == 0 or state.update in (1, n_updates):
            chains = share.gather(metrics.negative.v)
            if self.log is not None:
                record = describe(state, metrics, chains, self.seen, self.test, config.train.min_var)
                record["clipped"] = int(self.clipped) / self.notes["since"]
                record["seconds"] = round(time.perf_counter() - self.started, 3)
                if record["energy_distance"] is not None:
                    self.notes["scores"].append(record["energy_distance"])
                self.log.write(record)
                between = every * max(1, config.log.points // max(1, config.log.images))
                if self.paint is not None and config.log.images and state.update % between == 0:
                    self._picture(self.paint, chains)
            self.clipped, self.notes["since"] = 0, 0
        due = time.perf_counter() - self.saved_at > max(60 * config.checkpoint.minutes, 50 * self.saved_in)
        if due and share.leads:
            share.wishes.add("save")
        by_count = config.checkpoint.updates is not None and state.update % config.checkpoint.updates == 0
        if state.update < n_updates and (by_count or "save" in share.agreed):
            self.save()
        return record

    def save(self) -> None:
        """A checkpoint, unless this update has one."""
        if self.saved_update == self.state.update:
            return
        began = time.perf_counter()
        self.state.settle()
        if not self.share.same(list(self.state.model.parameters())):
            raise UserError("The processes no longer hold the same parameters; run them on machines of one kind.")
        if self.log is not None:
            self.log.flush()  # first: the checkpoint relies on these lines
        scores = self.notes["scores"]
        notes = self.notes | {
            "seconds": round(began - self.started, 3),
            "clipped": int(self.clipped),
            "score": sum(scores) / len(scores) if scores else None,
            "scores": [],
        }
        folder = self.folder / runs.CHECKPOINTS
        checkpoint.save(folder, self.state, run=self.run, notes=notes, share=self.share)
        if self.share.leads:
            checkpoint.prune(folder, self.config.checkpoint.keep, self.state.update)
        self.notes["scores"] = []
        self.share.wishes.discard("save")
        self.saved_at, self.saved_update = time.perf_counter(), self.state.update
        self.saved_in = self.saved_at - began

    def finish(self, message: str) -> None:
        """The weights, and how training ended; all processes leave together."""
        if self.share.leads:
            runs.save_model(self.folder, self.state.model, self.state.average)
            runs.save_status(self.folder, self.state.update, message, self._machine())
        self.share.from_leader()

    def _machine(self) -> str:
        device = self.state.model.W.device
        cuda = device.type == "cuda"
        what = torch.cuda.get_device_name(device) if cuda else f"CPU, {_counted(torch.get_num_threads(), 'thread')}"
        share = f", {self.share.world} processes" if self.share.world > 1 else ""
        return f"{what}{share}; PyTorch {torch.__version__}, chains in {self.notes['engine']} code"

    def _keep_model(self, metrics: StepMetrics) -> None:
        """The model as it is now, where its chains and those of the last one kept would rarely swap."""
        update, config = self.state.update, self.config
        least = config.checkpoint.trajectory or (0.4 if config.sampler.name == "trajectory-tempering" else 0.0)
        if least == 0 or update % max(1, update // 100):
            return
        chains = self.share.gather(metrics.negative.v)
        if not self.share.leads:
            return
        now = copy.deepcopy(self.state.model)
        for before, v in self.kept:
            n = min(len(v), len(chains))
            old, new = (model.to(chains.device).freeze() for model in (before, now))
            if swap_rate(old.free_energy, new.free_energy, v[:n].to(chains), chains[:n]) >= least:
                return
        runs.save_trajectory(self.folder, update, now, chains)
        self.kept = [(now, chains)]

    def last_saved(self) -> str:
        if self.saved_update == 0:
            return "there is no checkpoint yet: free some space and train again with --overwrite."
        return (
            f"the checkpoint of update {self.saved_update} is whole: free some space, then: grbm resume {self.folder}"
        )

    @torch.no_grad()
    def _picture(self, paint: Callable[[Tensor], np.ndarray], chains: Tensor) -> None:
        """The chains' conditional means."""
        assert self.log is not None
        energy = self.state.model.freeze()
        mean = energy.visible_mean(energy.hidden_logits(chains[:64]).sigmoid())
        self.log.image("chains", paint(mean), self.state.update)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


@torch.no_grad()
def describe(
    state: TrainState, metrics: StepMetrics, chains: Tensor, data: Tensor, test: Tensor, min_var: float
) -> Record:
    """One line of metrics.jsonl; energies are per sample, in nats. ``chains`` (C, N) are those of all processes."""
    energy = state.model.freeze()
    reconstruction = energy.visible_mean(energy.hidden_logits(data).sigmoid())
    log_var, mean_h = state.model.log_var, metrics.data_mean_h
    numbers = {
        "update": state.update,
        "learning_rate": state.optimizer.param_groups[0]["lr"],
        "grad_norm": float(metrics.grad_norm),
        "reconstruction": float((data - reconstruction).square().mean()),
        "var_mean": float(log_var.exp().mean()),
        "log_var_mean": float(log_var.mean()),
        "log_var_min": float(log_var.min()),
        "log_var_max": float(log_var.max()),
        "at_floor": float((log_var <= math.log(min_var) + 1e-6).double().mean()),
        "hidden_off": float((mean_h < 0.01).double().mean()),
        "hidden_on": float((mean_h > 0.99).double().mean()),
        "free_energy_data": float(energy.free_energy(data).mean()),
        "free_energy_test": float(energy.free_energy(test).mean()) if len(test) else None,
        "free_energy_chains": float(energy.free_energy(chains).mean()),
        "energy_distance": float(energy_distance(chains, data)),
        "accept_prob": None if metrics.accept_prob is None else float(metrics.accept_prob),
        "swap_rate_min": None if metrics.swap_rate is None else float(metrics.swap_rate.min()),
        "replicas": None if metrics.swap_rate is None else len(metrics.swap_rate) + 1,
    }
    return {name: x if x is not None and math.isfinite(x) else None for name, x in numbers.items()}  # JSON has no NaN
