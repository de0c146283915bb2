"""`grbm train` and `grbm resume`: prepare a run, take it up where it was left, and let it learn until it ends."""

import hashlib
import json
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from grbm.data.sentinels import sentinels
from grbm.data.standardise import Standardised
from grbm.data.tables import spread
from grbm.distributed import ALONE, ProcessGroup
from grbm.errors import DivergenceError, StoppedError, UserError
from grbm.model import GRBM
from grbm.runs import checkpoint, claiming
from grbm.runs import folder as run_folder
from grbm.runs.config import RunConfig
from grbm.runs.folder import CHECKPOINTS, CONFIG, WEIGHTS, Status
from grbm.runs.logs import Log, Record
from grbm.runs.logs import check as check_log
from grbm.runs.preparing import Prepared, prepare
from grbm.runs.presets import for_wide, without_rounds
from grbm.runs.recorder import Notes, Recorder
from grbm.runs.signals import on_signals
from grbm.samplers.engines import engine_name
from grbm.streams import plain
from grbm.training import fit

LOOKED_AT = 2_000_000  # numbers, among which those that stand for something else are looked for


def _warn(message: str) -> None:
    print(f"grbm: {plain(message)}", file=sys.stderr, flush=True)


def train(
    config: RunConfig,
    folder: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    group: ProcessGroup = ALONE,
    device: str | None = None,
    on_start: Callable[[Tensor | Standardised, GRBM, int, int], None] = lambda data, model, update, n_updates: None,
    on_update: Callable[[int, Record | None], None] = lambda update, record: None,
    warn: Callable[[str], None] = _warn,
) -> None:
    """Train as ``config`` says and write everything but figures to ``folder``.

    Parameters
    ----------
    config, folder
        What to do, and the run folder; `grbm.runs.read` reads it back.
    overwrite : bool
        Replace a run that is there.
    resume : bool
        Go on from the newest good checkpoint in ``folder``; begin where there is none. The resumed run ends with the
        numbers of one that was never interrupted, bit for bit on the same device.
    group, device
        The processes that share the run and this one's device, from `grbm.distributed.join`; all must make the same
        call.
    on_start, on_update : callable
        Called with the data, the model, the update and the number of updates at the start, and with every update and
        the record where one was logged.
    warn : callable
        Called with what the user should know, such as a damaged checkpoint.

    Raises
    ------
    DivergenceError
        When numbers leave the finite world; the last good weights are kept.
    LostProcessError
        Where another process of the group has died.
    StoppedError
        After SIGINT, SIGTERM or SIGHUP, when the update is finished and a checkpoint written.
    UserError
        For bad input, a run that is there already, other settings than those of the run resumed, a full disk.
    """
    group.on_leader(config.check)
    group.on_leader(lambda: check_log(config))
    resume = group.broadcast(resume or claiming.is_claimed(folder))
    resume = group.broadcast(resume and (folder / CONFIG).is_file())
    key = config.dataset.key
    if resume:
        config, key = group.broadcast(group.on_leader(lambda: _as_begun(folder, config)))
        if group.broadcast(group.on_leader(lambda: _is_finished(folder))):
            return
    if not resume:
        group.on_leader(lambda: claiming.refuse_taken(folder, config, overwrite=overwrite))  # before anything is read
    run = prepare(config, folder, group, device, resume=resume)
    run = run._replace(config=_with(run.config, key=key))  # under which the data lie now is no setting of the run
    with ExitStack() as held:
        group.on_leader(lambda: held.enter_context(claiming.locked(folder)))
        notes = _take_up(run, folder, group, warn) if resume else Notes()
        if not resume:  # only now, when nothing in the configuration can fail any more
            group.on_leader(lambda: claiming.create(folder, run.config, overwrite=overwrite))
            if group.is_leader:
                _describe_pictures(run, warn)
                if run.config.dataset.name == "array":
                    rows = run.dataset.train
                    for found in sentinels(rows[spread(len(rows), LOOKED_AT // rows.shape[1] + 1)].numpy()):
                        warn(found.sentence(run.dataset.columns))
        log = group.on_leader(lambda: _open(run, folder, warn))
        try:
            recorder = Recorder(run, folder, group, log, _name_of(run.config), notes, warn)
            _learn(run, recorder, folder, on_start, on_update)
        finally:
            if log is not None:
                with suppress(OSError):  # all that counts was flushed before
                    log.close()


def _describe_pictures(run: Prepared, warn: Callable[[str], None]) -> None:
    """Say what was made of pictures where the user may have meant something else."""
    pictures = run.dataset.pictures
    if pictures is not None:
        pictures.describe(run.config.data or run.config.data_dir, warn, "; --dataset.white chooses another number")
        if pictures.white is None and run.config.dataset.white is not None:
            warn("--dataset.white changes nothing here: no picture has more than 8 bits.")
    if run.dataset.is_grey:
        warn("These pictures are grey, and learned as three equal channels; --dataset.grey learns one.")


def _take_up(run: Prepared, folder: Path, group: ProcessGroup, warn: Callable[[str], None]) -> Notes:
    """Put the state where the newest good checkpoint has it, and return what was noted there.

    Raises UserError if the data are others.
    """
    name = _name_of(run.config)
    newest = group.on_leader(lambda: checkpoint.newest(folder / CHECKPOINTS, run.state, run=name, warn=warn))
    saved = group.broadcast(newest)
    if saved is None:
        return Notes()
    try:
        notes = Notes.read(saved.record["notes"])
    except ValueError as error:
        raise UserError(f"{saved.folder} is damaged ({error}); remove it, then resume the run.") from error
    group.on_leader(lambda: _check_data(folder, notes, run))
    try:
        checkpoint.restore(run.state, saved, group)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(f"{saved.folder} does not fit this run ({error}); remove it, then resume the run.") from error
    engine = engine_name(run.state.model.W.device)
    if notes.engine not in ("", engine):
        warn(f"The chains ran in {notes.engine} code and go on in {engine} code: as good, with other random numbers.")
    return notes


def _check_data(folder: Path, notes: Notes, run: Prepared) -> None:
    if notes.data != run.fingerprint:
        raise UserError(f"The data are not those that {folder} was trained on so far; give the same data.")


def _learn(
    run: Prepared,
    recorder: Recorder,
    folder: Path,
    on_start: Callable[[Tensor | Standardised, GRBM, int, int], None],
    on_update: Callable[[int, Record | None], None],
) -> None:
    """Update after update, until all are made, a signal asks for a stop, or the numbers leave the finite world."""
    state, options, group = run.state, run.config.train, recorder.group
    if group.is_leader:
        on_start(run.data, state.model, state.update, run.config.train.n_updates)

    def stop(number: int) -> None:
        """After this update; a second SIGINT stops at once."""
        group.requests.add("stop")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        with on_signals(stop) as asked:
            how = run.config.precision
            learning = fit(state, run.data, run.objective, options, precision=how, group=group)
            for metrics in learning if not recorder.is_done else ():
                on_update(state.update, recorder.after(metrics))
                if recorder.is_done:
                    break
                if "stop" in group.agreed and state.update < options.n_updates:
                    recorder.save()
                    recorder.finish(Status("interrupted", state.update, recorder.machine))
                    raise StoppedError(asked[0] if asked else 0, folder, state.update)
            recorder.save()
            recorder.finish(Status("finished", state.update, recorder.machine))
    except DivergenceError as error:
        state.average = None  # it has taken in the step that went wrong; the parameters have taken it back
        recorder.finish(Status("diverged", state.update, recorder.machine, error.divergence))
        raise DivergenceError(error.divergence, folder / WEIGHTS) from error
    except OSError as error:
        raise UserError(
            f"{folder} could not be written after update {state.update} ({error.strerror or error}); "
            f"{recorder.last_saved()}"
        ) from error


def _open(run: Prepared, folder: Path, warn: Callable[[str], None]) -> Log:
    """The run's log, with what an earlier attempt wrote after this update taken back."""
    claiming.clean(folder)
    shape, fingerprint = run.dataset.image_shape, run.fingerprint
    run_folder.save_data(folder, run.scale, run.base, shape, run.reference, run.contrasts, fingerprint)
    run_folder.forget_results(folder)  # of weights that will not be the run's
    return Log(folder, run.config, run.state.update, warn)


def _name_of(config: RunConfig) -> str:
    """A short name for what decides the numbers; settings at their default do not enter, so new ones may be added."""
    usual = RunConfig().identity()
    chosen = {name: value for name, value in config.identity().items() if value != usual[name]}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


def _with(config: RunConfig, **changed: Any) -> RunConfig:
    """``config`` with other settings of its data set."""
    return replace(config, dataset=replace(config.dataset, **changed))


def _as_begun(folder: Path, config: RunConfig) -> tuple[RunConfig, str | None]:
    """The configuration as the run was begun with it, with the key of the data as it is now, and as it was then.

    Raises UserError where the run was begun with another.
    """
    there, now = run_folder.read_config(folder), config.dataset.key
    config = _with(config, key=there.dataset.key, white=config.dataset.white or there.dataset.white)
    other = there.difference(config)
    if config.preset == "array":  # what becomes of it when its table turns out to be wide or short
        may_be = config, for_wide(config), without_rounds(config)
        config = next((c for c in may_be if there.difference(c) is None), config)
    if there.difference(config) is not None:
        raise UserError(
            f"{folder} was begun with {other}; go on with: grbm resume {folder}, or choose another folder with --out."
        )
    return _with(config, key=now), there.dataset.key


def _is_finished(folder: Path) -> bool:
    """Whether there is nothing left to resume; raises UserError where the run cannot be."""
    status = run_folder.read_status(folder)
    if status.ended == "diverged":
        raise UserError(f"{folder} cannot go on, since a resumed run repeats itself exactly. {status}")
    return status.ended == "finished" and run_folder.has_weights(folder)
