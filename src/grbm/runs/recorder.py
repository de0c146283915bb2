"""What a run in progress logs and saves, and when."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from grbm.data.images import tile
from grbm.data.tables import spread
from grbm.distributed import ProcessGroup
from grbm.errors import UserError
from grbm.evaluate.distance import energy_distance
from grbm.evaluate.watching import Nats, Watch, can_watch, is_gaussian_enough
from grbm.files import read_tensors, write_tensors
from grbm.initialise import gaussian_
from grbm.model import GRBM
from grbm.randomness import generator
from grbm.runs import checkpoint, claiming
from grbm.runs import folder as run_folder
from grbm.runs.folder import BEST_WEIGHTS, CHECKPOINTS, Status
from grbm.runs.logs import Log, Record
from grbm.runs.preparing import Prepared
from grbm.samplers.engines import engine_name
from grbm.samplers.trajectory import swap_rate
from grbm.training import StepMetrics, TrainState
from grbm.typed import is_kind


@dataclass
class Notes:
    """What a checkpoint keeps beside the state of training, so that a resumed run logs as one never interrupted."""

    seconds: float = 0.0
    clipped: Tensor | int = 0  # updates since the last record whose gradient was clipped
    since: int = 0  # updates since the last record
    scores: list[float] = field(default_factory=list)  # energy distances since the last checkpoint
    data: str = ""  # the fingerprint of the data
    engine: str = ""  # the code in which the chains ran
    best: float | None = None  # nats per row of the validation rows, where the best weights were saved
    best_update: int = 0
    worse: int = 0  # looks since then

    @classmethod
    def read(cls, notes: dict[str, Any]) -> Self:
        """The notes of a checkpoint, which also notes the score of its parameters; ValueError for what is none."""
        kinds: dict[str, Any] = {
            "seconds": float,
            "clipped": int,
            "since": int,
            "scores": list[float],
            "data": str,
            "engine": str,
        }
        kinds |= {"best": float | None, "best_update": int, "worse": int}
        if wrong := [name for name, kind in kinds.items() if name in notes and not is_kind(kind, notes[name])]:
            raise ValueError(f"its note {wrong[0]} is {notes[wrong[0]]!r}")
        return cls(**{f.name: notes[f.name] for f in fields(cls) if f.name in notes})


BROAD = 4.0  # times the data's variance: a unit so broad has been given up by the model


def broadest(var: Tensor, data_var: Tensor) -> tuple[int, float]:
    """The visible unit that is broadest beside the data, and how many times; data that hardly vary count as others."""
    ratio = var.cpu() / data_var.clamp_min(float(data_var.mean()))
    return int(ratio.argmax()), float(ratio.max())


class Recorder:
    """The bookkeeping of a run in progress: what is logged, what is saved, and when."""

    def __init__(
        self,
        run: Prepared,
        folder: Path,
        group: ProcessGroup,
        log: Log | None,
        name: str,
        notes: Notes,
        warn: Callable[[str], None],
    ) -> None:
        self.warn: Callable[[str], None] | None = warn  # until it was used
        self.data_var = run.base.var
        self.config, self.state, self.scale = run.config, run.state, run.scale
        self.image_shape = run.dataset.image_shape
        self.folder, self.group, self.log, self.name = folder, group, log, name
        device = run.state.model.W.device
        self.seen = run.data[spread(len(run.data), 512)]
        self.test = run.scale(run.dataset.test[:512]).to(device)
        self.notes = notes
        self.notes.data, self.notes.engine = run.fingerprint, engine_name(device)
        self.started = time.perf_counter() - notes.seconds
        self.kept = run_folder.read_trajectory(folder, run.state.update)[-1:]  # the last model kept, and its chains
        self.saved_at, self.saved_in, self.saved_update = time.perf_counter(), 0.0, run.state.update
        self.place = claiming.identity(folder)
        patience = run.config.train.patience
        self.is_done = patience is not None and notes.worse >= patience  # whether it has run out
        self.watch = None
        if len(run.validation) and can_watch(run.objective.sampler) and group.world_size == 1:
            self.watch = Watch(run.objective.sampler, run.validation, seed=run.config.seed)
        elif run.config.train.keep_best or run.config.train.patience is not None:
            why = (
                "several processes share the run"
                if group.world_size > 1
                else "nothing is held out that could be scored"
            )
            warn(f"No best model is kept, and training does not stop early: {why}.")
        self.base, self.reference, self.contrasts = run.base, run.reference, run.contrasts

    def after(self, metrics: StepMetrics) -> Record | None:
        """What follows an update: perhaps a record, a picture, a checkpoint. All processes come here together."""
        config, state, group, notes = self.config, self.state, self.group, self.notes
        n_updates, clip = config.train.n_updates, config.train.clip_norm
        notes.clipped = notes.clipped + (0 if clip is None else (metrics.grad_norm > clip).long())  # no wait for a GPU
        notes.since += 1
        self._keep_model(metrics)
        nats = self._look()
        record = None
        every = max(1, n_updates // config.log.points)
        is_round = state.update > config.train.first_round
        if state.update % every == 0 or state.update in (1, n_updates) or is_round or nats is not None:
            chains = group.all_gather(metrics.negative.v)
            if self.log is not None:
                self._require_place()
                record = record_of(state, metrics, chains, self.seen, self.test, config.train.min_var)
                record |= _nats(nats, self.scale.log_det)
                record["clipped"] = int(notes.clipped) / notes.since
                record["seconds"] = round(time.perf_counter() - self.started, 3)
                if record["energy_distance"] is not None:
                    notes.scores.append(record["energy_distance"])
                self.log.write(record)
                self._remark()
                between = every * max(1, config.log.points // max(1, config.log.images))
                if self.image_shape is not None and config.log.images and state.update % between == 0:
                    self._picture(self.image_shape, chains)
            notes.clipped, notes.since = 0, 0
        due = time.perf_counter() - self.saved_at > max(60 * config.checkpoint.minutes, 50 * self.saved_in)
        if due and group.is_leader:
            group.requests.add("save")
        by_count = config.checkpoint.updates is not None and state.update % config.checkpoint.updates == 0
        if state.update < n_updates and (by_count or "save" in group.agreed):
            self.save()
        return record

    def save(self) -> None:
        """A checkpoint, unless this update has one."""
        if self.saved_update == self.state.update:
            return
        began = time.perf_counter()
        self.state.settle()
        if not self.group.agree(list(self.state.model.state_dict().values())):
            raise UserError("The processes no longer hold the same parameters; run them on machines of one kind.")
        if self.log is not None:
            self._require_place()
            self.log.flush()  # first: the checkpoint relies on these lines
        notes, scores = self.notes, self.notes.scores
        notes.seconds, notes.clipped, notes.scores = round(began - self.started, 3), int(notes.clipped), []
        noted = asdict(notes) | {"score": sum(scores) / len(scores) if scores else None}
        folder = self.folder / CHECKPOINTS
        checkpoint.save(folder, self.state, run=self.name, notes=noted, group=self.group)
        if self.group.is_leader:
            checkpoint.prune(folder, self.config.checkpoint.keep, self.state.update, self.name)
        self.group.requests.discard("save")
        self.saved_at, self.saved_update = time.perf_counter(), self.state.update
        self.saved_in = self.saved_at - began

    def finish(self, status: Status) -> None:
        """The weights, and how training ended; all processes leave together."""
        if self.group.is_leader:
            self._require_place()
            average = self.state.average
            if status.ended == "finished" and self.config.train.keep_best:
                average = self._best_model() or average
            run_folder.save_model(self.folder, self.state.model, average)
            run_folder.save_status(self.folder, status)
        self.group.broadcast()

    def _look(self) -> Nats | None:
        """The held-out log-likelihood, now and then; the best weights so far go into a file of their own."""
        state, train, notes = self.state, self.config.train, self.notes
        if self.watch is None or not train.is_look(state.update):
            return None
        nats = self.watch.look(self.state)
        notes.worse += 1
        if math.isfinite(nats.mean) and (notes.best is None or nats.mean > notes.best):
            notes.best, notes.best_update, notes.worse = nats.mean, state.update, 0
            if train.keep_best:
                self._require_place()
                write_tensors(self.folder / BEST_WEIGHTS, self.watch.best_model().state_dict())
        if train.before_rounds(state.update):
            notes.worse = 0
        self.is_done = train.patience is not None and notes.worse >= train.patience
        return nats

    def _best_model(self) -> GRBM | None:
        """The model that scored best on the validation rows, or one Gaussian where that scores better still."""
        path = self.folder / BEST_WEIGHTS
        if self.watch is None or self.notes.best is None or not path.is_file():
            return None
        model = GRBM.from_parameters(read_tensors(path), str(path)).to(self.state.model.W.device)
        gaussian = self.base, self.reference, self.contrasts
        if is_gaussian_enough(model, self.notes.best, self.watch.rows, *gaussian):
            gaussian_(model, self.base.mean.to(model.W), self.base.var.to(model.W))
            model.contrasts = self.contrasts
            print(
                "One Gaussian describes the validation rows as well as any machine on the way, and is what is "
                "kept (W = 0: hidden units tell nothing; the last machine is --weights raw).",
                flush=True,
            )
        return model

    def _require_place(self) -> None:
        """Raise UserError where the run's folder is no longer where it was: what is written there would be no run."""
        lost = self.log is not None and self.log.lost
        if claiming.identity(self.folder) != self.place or lost:
            raise UserError(
                f"{self.folder}, or a file in it, was removed, renamed or replaced while it was trained, so training "
                f"stopped at update {self.state.update:,} and nothing more was written. If it was renamed, go on with: "
                f"grbm resume and its new name."
            )

    @property
    def machine(self) -> str:
        """What the run is trained on."""
        device, size = self.state.model.W.device, self.group.world_size
        cuda = device.type == "cuda"
        what = torch.cuda.get_device_name(device) if cuda else f"CPU, {_counted(torch.get_num_threads(), 'thread')}"
        processes = f", {size} processes" if size > 1 else ""
        return f"{what}{processes}; PyTorch {torch.__version__}, chains in {self.notes.engine} code"

    def _keep_model(self, metrics: StepMetrics) -> None:
        """The model as it is now, where its chains and those of the last one kept would rarely swap."""
        update, config = self.state.update, self.config
        least = config.checkpoint.trajectory or (0.4 if config.sampler.name == "trajectory-tempering" else 0.0)
        if least == 0 or update % max(1, update // 100):
            return
        chains = self.group.all_gather(metrics.negative.v)
        if not self.group.is_leader:
            return
        self._require_place()
        now = copy.deepcopy(self.state.model)
        for before, v in self.kept:
            n = min(len(v), len(chains))
            old, new = (model.to(chains.device).freeze() for model in (before, now))
            if swap_rate(old.free_energy, new.free_energy, v[:n].to(chains), chains[:n]) >= least:
                return
        run_folder.save_trajectory(self.folder, update, now, chains)
        self.kept = [(now, chains)]

    @torch.no_grad()
    def _remark(self) -> None:
        """Say so, once, where a visible unit has become far broader than the data."""
        unit, times = broadest(self.state.model.var, self.data_var)
        late = self.state.update >= self.config.train.n_updates / 10  # not where it started so
        if self.warn is not None and late and times > BROAD:
            self.warn(
                f"At update {self.state.update:,} visible unit {unit} has {times:.3g} times the data's variance: the "
                f"model is giving it up. If it stays so, lower the learning rate (--lr)."
            )
            self.warn = None

    def last_saved(self) -> str:
        if self.saved_update == 0:
            return "there is no checkpoint yet: free some space and train again with --overwrite."
        return (
            f"the checkpoint of update {self.saved_update} is whole: free some space, then: grbm resume {self.folder}"
        )

    @torch.no_grad()
    def _picture(self, shape: tuple[int, int, int], chains: Tensor) -> None:
        """The chains' conditional means."""
        assert self.log is not None
        model = self.state.model
        rng = generator(self.state.seed, "shown", self.state.update, device=chains.device)
        mean = model.reconstruction(model.at_any_contrast(chains[:64], rng))
        self.log.image("chains", tile(self.scale.inverse(mean.cpu()), shape, 16), self.state.update)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _nats(nats: Nats | None, log_det: float) -> Record:
    """What a look at the validation rows says, in the data's units; nothing where there was none."""
    if nats is None:
        return {"nats_validation": None, "nats_error": None, "log_z": None, "log_z_error": None}
    found = {"nats_validation": nats.mean + log_det, "nats_error": nats.error}
    found |= {"log_z": nats.log_z.log_z, "log_z_error": nats.log_z.error}
    return {name: x if math.isfinite(x) else None for name, x in found.items()}


@torch.no_grad()
def record_of(
    state: TrainState, metrics: StepMetrics, chains: Tensor, data: Tensor, test: Tensor, min_var: float
) -> Record:
    """A line of metrics.jsonl; energies are per sample, in nats. ``chains`` (C, N) are those of all processes."""
    model = state.model
    shown = model.at_any_contrast(chains, generator(state.seed, "shown", state.update, device=chains.device))
    reconstruction = model.reconstruction(data)
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
        "free_energy_data": float(model.free_energy(data).mean()),
        "free_energy_test": float(model.free_energy(test).mean()) if len(test) else None,
        "free_energy_chains": float(model.free_energy(shown).mean()),
        "energy_distance": float(energy_distance(shown, data)),
        "accept_prob": None if metrics.accept_rate is None else float(metrics.accept_rate),
        "swap_rate_min": None if metrics.swap_rate is None else float(metrics.swap_rate.min()),
        "replicas": None if metrics.swap_rate is None else len(metrics.swap_rate) + 1,
    }
    return {name: x if x is not None and math.isfinite(x) else None for name, x in numbers.items()}  # JSON has no NaN
