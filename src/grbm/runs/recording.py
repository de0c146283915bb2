"""Callbacks of a run: log metrics, save checkpoints and models along training, stop after signals."""

import copy
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grbm.core.distributed import ProcessGroup
from grbm.core.errors import UserError
from grbm.core.randomness import generator
from grbm.core.typed import restore
from grbm.data.images import tile
from grbm.data.tables import spread
from grbm.evaluate.distance import energy_distance
from grbm.fitting.callbacks import Callback, Progress
from grbm.learning.state import TrainState
from grbm.model import GRBM
from grbm.runs import checkpoint, claiming
from grbm.runs.folder import CHECKPOINTS, read_trajectory, save_trajectory
from grbm.runs.logs import Log, Record
from grbm.runs.preparing import Prepared
from grbm.samplers.trajectory import swap_rate

BROAD = 4.0  # times the data's variance: a unit so broad has been given up by the model


def broadest(var: Tensor, data_var: Tensor) -> tuple[int, float]:
    """The visible unit that is broadest beside the data, and how many times; data that hardly vary count as others."""
    ratio = var.cpu() / data_var.clamp_min(float(data_var.mean()))
    return int(ratio.argmax()), float(ratio.max())


class Session:
    """A run in training, its processes, its log, and its folder, which must not be moved or replaced."""

    def __init__(
        self, run: Prepared, folder: Path, group: ProcessGroup, log: Log | None, warn: Callable[[str], None]
    ) -> None:
        self.run, self.config, self.folder, self.group = run, run.config, folder, group
        self.log, self.warn, self.identity = log, warn, claiming.identity(folder)

    def require(self, update: int) -> None:
        """Raise UserError where the folder is no longer where it was: what is written there would be no run."""
        if claiming.identity(self.folder) != self.identity or (self.log is not None and self.log.lost):
            raise UserError(
                f"{self.folder}, or a file in it, was removed, renamed or replaced while it was trained, so training "
                f"stopped at update {update:,} and nothing more was written. If it was renamed, go on with: "
                f"grbm resume and its new name."
            )


class Counts(NamedTuple):
    """State of `MetricsLog` in a checkpoint."""

    seconds: float
    clipped: int  # updates since the last record whose gradient was clipped
    since: int  # updates since the last record


class MetricsLog(Callback):
    """Write metrics.jsonl and pictures of the chains; warn once about a visible unit with excessive variance."""

    def __init__(self, session: Session) -> None:
        run, self.session, self.config = session.run, session, session.config
        self.has_warned = False
        self.record: Record | None = None  # of the last update, where it has one
        self.seen = run.data[spread(len(run.data), 512)]
        self.test = run.frame.transform(run.frame.inward(run.dataset.test[:512])).to(run.state.model.W.device)
        self.log_det = run.validation.log_det
        self.started, self.clipped, self.since = time.perf_counter(), torch.tensor(0), 0
        self.scores: list[float] = []  # energy distances since the last checkpoint

    def state_dict(self) -> dict[str, Any]:
        seconds = round(time.perf_counter() - self.started, 3)
        return Counts(seconds, int(self.clipped), self.since)._asdict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        seconds, clipped, self.since = restore(Counts, state)
        if self.since < 0:
            raise ValueError(f"since is {self.since}")
        self.started, self.clipped = time.perf_counter() - seconds, torch.tensor(clipped)

    def after(self, progress: Progress) -> None:
        train, metrics, log = self.config.train, progress.metrics, self.config.log
        if train.clip_norm is not None:
            is_clipped = (metrics.grad_norm > train.clip_norm).long()
            self.clipped = self.clipped.to(is_clipped) + is_clipped  # no wait for a GPU
        self.since += 1
        self.record = None
        every = max(1, train.n_updates // log.points)
        is_due = progress.update % every == 0 or progress.update in (1, train.n_updates)
        if not (is_due or progress.update > train.first_round or progress.nats is not None):
            return
        chains = self.session.group.all_gather(metrics.negative.v)
        if self.session.log is not None:
            self.session.require(progress.update)
            self.record = self._write(self.session.log, progress, chains)
            between = every * max(1, log.points // max(1, log.images))
            if (shape := self.session.run.dataset.image_shape) and log.images and progress.update % between == 0:
                self._picture(self.session.log, progress.state, shape, chains)
        self.clipped, self.since = torch.tensor(0), 0

    def _write(self, log: Log, progress: Progress, chains: Tensor) -> Record:
        record = self._record(progress, chains)
        record["clipped"] = int(self.clipped) / self.since
        record["seconds"] = round(time.perf_counter() - self.started, 3)
        if record["energy_distance"] is not None:
            self.scores.append(record["energy_distance"])
        log.write(record)
        self._remark(progress.state)
        return record

    @torch.no_grad()
    def _record(self, progress: Progress, chains: Tensor) -> Record:
        """A line of metrics.jsonl; energies are per sample, in nats. ``chains`` (C, N) are those of all processes."""
        state, metrics, nats, data, test = progress.state, progress.metrics, progress.nats, self.seen, self.test
        model, log_var, mean_h = state.model, state.model.log_var, progress.metrics.data_mean_h
        shown = model.at_any_contrast(chains, generator(state.seed, "shown", state.update, device=chains.device))
        reconstruction = model.reconstruction(data)
        numbers = {
            "update": state.update,
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "grad_norm": float(metrics.grad_norm),
            "reconstruction": float((data - reconstruction).square().mean()),
            "var_mean": float(log_var.exp().mean()),
            "log_var_mean": float(log_var.mean()),
            "log_var_min": float(log_var.min()),
            "log_var_max": float(log_var.max()),
            "at_floor": float((log_var <= math.log(self.config.train.min_var) + 1e-6).double().mean()),
            "hidden_off": float((mean_h < 0.01).double().mean()),
            "hidden_on": float((mean_h > 0.99).double().mean()),
            "free_energy_data": float(model.free_energy(data).mean()),
            "free_energy_test": float(model.free_energy(test).mean()) if len(test) else None,
            "free_energy_chains": float(model.free_energy(shown).mean()),
            "energy_distance": float(energy_distance(shown, data)),
            "accept_prob": None if metrics.accept_rate is None else float(metrics.accept_rate),
            "swap_rate_min": None if metrics.swap_rate is None else float(metrics.swap_rate.min()),
            "replicas": None if metrics.swap_rate is None else len(metrics.swap_rate) + 1,
            "nats_validation": None if nats is None else nats.mean + self.log_det,
            "nats_error": None if nats is None else nats.error,
            "log_z": None if nats is None else nats.log_z.log_z,
            "log_z_error": None if nats is None else nats.log_z.error,
        }
        # JSON has no NaN
        return {name: x if x is not None and math.isfinite(x) else None for name, x in numbers.items()}

    @torch.no_grad()
    def _remark(self, state: TrainState) -> None:
        """Say so, once, where a visible unit has become far broader than the data."""
        unit, times = broadest(state.model.var, self.session.run.frame.base.var)
        late = state.update >= self.config.train.n_updates / 10  # not where it started so
        if late and times > BROAD and not self.has_warned:
            self.has_warned = True
            self.session.warn(
                f"At update {state.update:,} visible unit {unit} has {times:.3g} times the data's variance: the "
                f"model no longer describes it. If it stays so, lower the learning rate (--lr)."
            )

    @torch.no_grad()
    def _picture(self, log: Log, state: TrainState, shape: tuple[int, int, int], chains: Tensor) -> None:
        """The chains' conditional means."""
        rng = generator(state.seed, "shown", state.update, device=chains.device)
        mean = state.model.reconstruction(state.model.at_any_contrast(chains[:64], rng))
        log.image("chains", tile(self.session.run.frame.transform.inverse(mean.cpu()), shape, 16), state.update)


class Trajectory(Callback):
    """Save models along training: a new one when its chains would rarely swap with those of the last one."""

    def __init__(self, session: Session) -> None:
        config, self.session = session.config, session
        self.least = config.checkpoint.trajectory or (0.4 if config.sampler.name == "trajectory-tempering" else 0.0)
        self.kept = read_trajectory(session.folder, session.run.state.update)[-1:]  # and its chains

    def after(self, progress: Progress) -> None:
        update, state = progress.update, progress.state
        if self.least == 0 or update % max(1, update // 100):
            return
        chains = self.session.group.all_gather(progress.metrics.negative.v)
        if not self.session.group.is_leader:
            return
        self.session.require(update)
        now = copy.deepcopy(state.model)
        for before, v in self.kept:
            n = min(len(v), len(chains))
            old, new = (model.to(chains.device).freeze() for model in (before, now))
            if swap_rate(old.free_energy, new.free_energy, v[:n].to(chains), chains[:n]) >= self.least:
                return
        save_trajectory(self.session.folder, update, now, chains)
        self.kept = [(now, chains)]


class Checkpoints(Callback):
    """Save checkpoints, with the states of callbacks, after given times and numbers of updates."""

    def __init__(self, session: Session, engine: str, log: MetricsLog, others: Mapping[str, Callback]) -> None:
        self.session, self.log, self.remembering = session, log, {"log": log, **others}
        self.notes = {"data": session.run.measured.fingerprint, "engine": engine}
        self.saved_at, self.saved_in, self.saved_update = time.perf_counter(), 0.0, session.run.state.update

    def after(self, progress: Progress) -> None:
        how, group = self.session.config.checkpoint, self.session.group
        is_due = time.perf_counter() - self.saved_at > max(60 * how.minutes, 50 * self.saved_in)
        if is_due and group.is_leader:
            group.requests.add("save")
        by_count = how.updates is not None and progress.update % how.updates == 0
        if progress.update < progress.n_updates and (by_count or "save" in group.agreed):
            self.save(progress.state)

    def save(self, state: TrainState) -> None:
        """A checkpoint, unless this update has one."""
        if self.saved_update == state.update:
            return
        began, session, group = time.perf_counter(), self.session, self.session.group
        state.settle()
        if not group.agree(list(state.model.state_dict().values())):
            raise UserError("The processes no longer hold the same parameters; run them on machines of one kind.")
        if session.log is not None:
            session.require(state.update)
            session.log.flush()  # first: the checkpoint relies on these lines
        scores, self.log.scores = self.log.scores, []
        notes: dict[str, Any] = self.notes | {"score": sum(scores) / len(scores) if scores else None}
        remembered = {name: callback.state_dict() for name, callback in self.remembering.items()}
        folder, name = session.folder / CHECKPOINTS, session.config.digest
        checkpoint.save(folder, state, run=name, notes=notes, callbacks=remembered, group=group)
        if group.is_leader:
            checkpoint.prune(folder, session.config.checkpoint.keep, state.update, name)
        group.requests.discard("save")
        self.saved_at, self.saved_update = time.perf_counter(), state.update
        self.saved_in = self.saved_at - began

    def last_saved(self) -> str:
        """Sentence that names the last checkpoint, for errors."""
        if self.saved_update == 0:
            return "there is no checkpoint yet: free some space and train again with --overwrite."
        return (
            f"the checkpoint of update {self.saved_update} is whole: free some space, then: grbm resume "
            f"{self.session.folder}"
        )


def machine_of(model: GRBM, group: ProcessGroup, engine: str) -> str:
    """Description of device, threads, processes and software."""
    device, size = model.W.device, group.world_size
    cuda = device.type == "cuda"
    n_threads = torch.get_num_threads()
    what = torch.cuda.get_device_name(device) if cuda else f"CPU, {n_threads} thread{'' if n_threads == 1 else 's'}"
    processes = f", {size} processes" if size > 1 else ""
    return f"{what}{processes}; PyTorch {torch.__version__}, chains in {engine} code"
