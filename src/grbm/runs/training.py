"""`grbm train` and `grbm resume`: prepare a run, take it up where it was left, and let it learn until it ends."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from grbm.core.devices import threads
from grbm.core.distributed import ALONE, ProcessGroup
from grbm.core.errors import DivergenceError, StoppedError, UserError
from grbm.core.streams import plain
from grbm.data import bounding, coarse, limits
from grbm.data.coarse import SHARE, grid_of
from grbm.data.frame import Frame
from grbm.data.limits import limits_of
from grbm.data.sentinels import sentinels
from grbm.data.tables import measure, spread
from grbm.data.weighting import effective
from grbm.fitting.callbacks import Call, Callback, EarlyStopping, KeepBest
from grbm.fitting.learn import learn, one_gaussian
from grbm.fitting.start import watch_of
from grbm.model import GRBM
from grbm.runs import checkpoint, claiming, logs
from grbm.runs import folder as run_folder
from grbm.runs.config import RunConfig
from grbm.runs.folder import CHECKPOINTS, CONFIG, RESULTS, WEIGHTS, Data, Status
from grbm.runs.preparing import Prepared, open_data, prepare
from grbm.runs.recording import Checkpoints, MetricsLog, Session, Trajectory, machine_of
from grbm.samplers.engines import engine_name

LOOKED_AT = 2_000_000  # numbers, among which those that stand for something else are looked for


def _warn(message: str) -> None:
    print(f"grbm: {plain(message)}", file=sys.stderr, flush=True)


def train(
    config: RunConfig,
    folder: Path,
    *,
    asked: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    group: ProcessGroup = ALONE,
    device: str | None = None,
    on_start: Callable[[Prepared], None] = lambda run: None,
    on_update: Callable[[int, logs.Record | None], None] = lambda update, record: None,
    warn: Callable[[str], None] = _warn,
) -> None:
    """Train as ``config`` says and write everything but figures to ``folder``.

    Parameters
    ----------
    config, folder
        What to do, and the run folder; `grbm.runs.read` reads it back.
    asked : dict, optional
        For a table of your own: settings by name, such as ``{"model.n_hidden": 64}``. All others are then as the table
        asks; without it they are as ``config`` has them.
    overwrite : bool
        Replace a run that is there.
    resume : bool
        Go on from the newest good checkpoint in ``folder``; begin where there is none. The resumed run ends with the
        numbers of one that was never interrupted, bit for bit on the same device.
    group, device
        The processes that share the run and this one's device, from `grbm.core.distributed.join`; all must make the
        same call.
    on_start, on_update : callable
        Called with what is prepared at the start, and with every update and the record where one was logged.
    warn : callable
        Called with what the user should know, such as a damaged checkpoint.

    Raises
    ------
    DivergenceError
        If a parameter or gradient is no longer finite; the last good weights are kept.
    LostProcessError
        Where another process of the group has died.
    StoppedError
        After SIGINT, SIGTERM or SIGHUP, when the update is finished and a checkpoint written.
    UserError
        For bad input, a run that is there already, other settings than those of the run resumed, a full disk.
    """
    group.on_leader(config.check)
    group.on_leader(lambda: logs.check(config))
    resume = group.broadcast((resume or claiming.is_claimed(folder)) and (folder / CONFIG).is_file())
    begun = group.broadcast(group.on_leader(lambda: run_folder.read_config(folder))) if resume else None
    if begun is None:
        group.on_leader(lambda: claiming.refuse_taken(folder, config, overwrite=overwrite))  # before anything is read
    else:
        config = _with(config, white=config.dataset.white or begun.dataset.white)
        if asked is None and group.broadcast(group.on_leader(lambda: _is_finished(folder, config, begun))):
            return
    opened = open_data(config, group, asked)
    if begun is not None and group.broadcast(group.on_leader(lambda: _is_finished(folder, opened.config, begun))):
        return
    run = prepare(opened, folder, group, device, resume=resume)
    if begun is not None:  # under which the data lie now is no setting of the run
        run = run._replace(config=_with(run.config, key=begun.dataset.key))
    with ExitStack() as held:
        group.on_leader(lambda: held.enter_context(claiming.locked(folder)))
        saved = _newest(run, folder, group, warn) if resume else None
        if not resume:  # only now, when nothing in the configuration can fail any more
            group.on_leader(lambda: claiming.create(folder, run.config, overwrite=overwrite))
            if group.is_leader:
                _describe_data(run, warn)
                for text in _advice(run):
                    warn(text)
        log = group.on_leader(lambda: _open(run, folder, warn))
        held.enter_context(threads(run.config.recipe.n_threads(run.state.model.n_visible)))
        if log is not None:
            held.callback(log.close)
        _learn(Session(run, folder, group, log, warn), saved, on_start, on_update)


def _advice(run: Prepared) -> Iterator[str]:
    """Say what the columns of a file hold that its user may want to be learned in another way."""
    asked, names, table = run.config.dataset, run.dataset.columns, run.dataset.opened
    if table is None:
        return
    rows = table.parted()[0]  # as they are in the file
    some = rows[spread(len(rows), LOOKED_AT // rows.n_columns + 1)]
    yield from (found.sentence(names) for found in sentinels(some.numpy()))
    yield from bounding.sentences(run.frame.bounds, names, asked=bool(asked.bounds))
    without, marked = run.frame.grid.is_coarse | run.frame.bounds.is_bounded, run.dataset.limits
    ends = limits_of(some, measure(some), "auto", same_unit=False, marked=marked)
    if asked.censor in ("none", "marks"):
        known = marked.low.isfinite() | marked.high.isfinite() | run.frame.grid.is_scored
        yield from limits.sentences(ends, some, names, without=known)
    if asked.coarse == "none" and asked.censor == "none" and (grid := grid_of(some, "auto", share=SHARE)).n:
        yield coarse.sentence(grid, names or [f"column {k}" for k in range(rows.n_columns)])
        without = without | grid.is_coarse
    yield from bounding.advice(bounding.bounds_of(some, is_auto=True, told={}, without=without, limits=ends), names)


def _describe_data(run: Prepared, warn: Callable[[str], None]) -> None:
    """Say what was made of a file or of pictures where the user may have meant something else."""
    pictures, opened = run.dataset.pictures, run.dataset.opened
    if opened is not None:
        for text in opened.describe(run.config.where, fills=run.gaps is not None):
            warn(text)
        weights = run.dataset.weights_of("train")
        if weights is not None:
            warn(
                f"{run.config.where}: {len(weights):,} rows to train on are weighted by column "
                f"{run.config.dataset.weights}, and worth {effective(weights):,.0f} of equal weight. Training repeats "
                f"each as its weight says, to {len(run.dataset.train):,} rows."
            )
    if pictures is not None:
        pictures.describe(run.config.data or run.config.data_dir, warn, "; --dataset.white chooses another number")
        if pictures.white is None and run.config.dataset.white is not None:
            warn("--dataset.white changes nothing here: no picture has more than 8 bits.")
    if run.dataset.is_grey:
        warn("These pictures are grey, and learned as three equal channels; --dataset.grey learns one.")


def _newest(
    run: Prepared, folder: Path, group: ProcessGroup, warn: Callable[[str], None]
) -> checkpoint.Checkpoint | None:
    """Restore the newest good checkpoint and return it; raise UserError if it belongs to other data."""

    def find() -> checkpoint.Checkpoint | None:
        saved = checkpoint.newest(folder / CHECKPOINTS, run.state, run=run.config.digest, warn=warn)
        if saved is not None and saved.record["notes"].get("data") != run.measured.fingerprint:
            raise UserError(f"The data are not those that {folder} was trained on so far; give the same data.")
        return saved

    saved: checkpoint.Checkpoint | None = group.broadcast(group.on_leader(find))
    if saved is None:
        return None
    try:
        checkpoint.restore(run.state, saved, group)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(f"{saved.folder} does not fit this run ({error}); remove it, then resume the run.") from error
    engine, then = engine_name(run.state.model.W.device), saved.record["notes"].get("engine", "")
    if then not in ("", engine):
        warn(f"The chains ran in {then} code and go on in {engine} code: as good, with other random numbers.")
    return saved


def _learn(
    session: Session,
    saved: checkpoint.Checkpoint | None,
    on_start: Callable[[Prepared], None],
    on_update: Callable[[int, logs.Record | None], None],
) -> None:
    """Train until all updates are made, a callback or a signal stops training, or it diverges."""
    run, folder, group = session.run, session.folder, session.group
    state, options = run.state, run.config.train
    engine = engine_name(state.model.W.device)  # native code is compiled before the clock runs
    keep, log, early = _keeping(session), MetricsLog(session), EarlyStopping(options, options.patience, options.tol)
    optional = {"best": keep, "gaps": run.refill}
    others = {"early": early} | {name: callback for name, callback in optional.items() if callback is not None}
    checkpoints = Checkpoints(session, engine, log, others)
    if saved is not None:
        try:
            for name, callback in checkpoints.remembering.items():
                callback.load_state_dict(saved.of_callback(name, state.model.W.device))
        except (ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
            raise UserError(f"{saved.folder} is damaged ({error}); remove it, then resume the run.") from error
    told = Call(lambda progress: on_update(progress.update, log.record))
    interrupt = Call(lambda progress: "stop" in group.agreed and progress.update < progress.n_updates)
    callbacks: list[Callback] = [Trajectory(session), early, log, checkpoints, told, interrupt]
    if run.refill is not None:  # before a checkpoint holds the rows
        callbacks.insert(0, run.refill)
    machine = machine_of(state.model, group, engine)
    if group.is_leader:
        on_start(run)

    def stop(number: int) -> None:
        """After this update; a second SIGINT stops at once."""
        group.requests.add("stop")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def finish(status: Status, model: GRBM | None) -> None:
        """Save weights and status; all processes return together."""
        if group.is_leader:
            session.require(state.update)
            run_folder.save_model(folder, state.model, model)
            run_folder.save_status(folder, status)
        group.broadcast()

    try:
        with on_signals(stop) as asked:
            how: dict[str, Any] = {"precision": run.config.precision, "group": group}
            ended = learn(state, run.data, run.objective, options, keep=keep, callbacks=callbacks, **how)
            checkpoints.save(state)
            if ended == "stopped":
                finish(Status("interrupted", state.update, machine), state.average)
                raise StoppedError(asked[0] if asked else 0, folder, state.update)
            best = _best(session, keep) if options.keep_best and keep is not None and keep.best is not None else None
            finish(Status("finished", state.update, machine), best or state.average)
    except DivergenceError as error:  # the average has taken in the step that went wrong; the parameters took it back
        finish(Status("diverged", state.update, machine, error.divergence), None)
        raise DivergenceError(error.divergence, folder / WEIGHTS) from error
    except OSError as error:
        raise UserError(
            f"{folder} could not be written after update {state.update} ({error.strerror or error}); "
            f"{checkpoints.last_saved()}"
        ) from error


@contextmanager
def on_signals(react: Callable[[int], None]) -> Iterator[list[int]]:
    """Call ``react`` with the number of each SIGINT, SIGTERM and SIGHUP inside the block; yields those heard so far.

    A SIGHUP that is ignored, as under ``nohup``, stays so. Outside the main thread, whose signals they are, nothing is
    heard.
    """
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def hear(number: int, frame: object) -> None:
        heard.append(number)
        react(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keeping(session: Session) -> KeepBest | None:
    """Make the `KeepBest` of a run; None if log Z cannot be estimated, or several processes share the rows."""
    run, options = session.run, session.config.train
    watch = watch_of(run.frame, run.objective.sampler, run.validation, run.config.seed)
    shares = session.group.world_size > 1
    if watch is not None and not shares:
        return KeepBest(watch, options, run.state)
    if options.keep_best or options.patience is not None:
        why = "several processes share the run" if shares else "nothing is held out that could be scored"
        session.warn(f"No best model is kept, and training does not stop early: {why}.")
    return None


def _best(session: Session, keep: KeepBest) -> GRBM:
    """The best model, or a Gaussian of all rows that scores as well, whose frame is then saved."""
    run, config = session.run, session.config
    how: dict[str, Any] = {"same": run.dataset.same, "seed": config.seed, "where": config.where}
    table, stats = run.dataset.train, run.measured.train
    if run.gaps is not None:  # The model's own draws would favour it.
        table, how["same"] = run.gaps.by_gaussian(config.recipe), None
        stats = measure(table)
    found = one_gaussian(keep, config.recipe, run.frame, run.data, table, stats, **how)
    if found is None:
        return keep.model()
    session.require(run.state.update)
    _data(run, found.frame).save(session.folder)
    print(
        "A full-covariance Gaussian describes the validation rows as well as any model on the way, and is kept (W = 0: "
        "codes carry no information; the last model is --weights raw).",
        flush=True,
    )
    return found.model


def _data(run: Prepared, kept: Frame | None) -> Data:
    """Facts of its data that a run keeps."""
    dataset = run.dataset
    return Data(run.frame, dataset.image_shape, run.measured.fingerprint, kept, dataset.columns)


def _open(run: Prepared, folder: Path, warn: Callable[[str], None]) -> logs.Log:
    """The run's log, with what an earlier attempt wrote after this update taken back."""
    claiming.clean(folder)
    kept = None
    with suppress(UserError):  # of weights that stay until there are others
        kept = run_folder.read_data(folder).kept
    _data(run, kept).save(folder)
    for name in RESULTS:  # of weights that will not be the run's, and how their training ended
        (folder / name).unlink(missing_ok=True)
    return logs.Log(folder, run.config, run.state.update, warn)


def _with(config: RunConfig, **changed: Any) -> RunConfig:
    """``config`` with other settings of its data set."""
    return replace(config, dataset=replace(config.dataset, **changed))


def _is_finished(folder: Path, config: RunConfig, begun: RunConfig) -> bool:
    """True if a run is finished and complete.

    Raises UserError for a run that has diverged, or was begun with other settings; the key of its data may be another
    now.
    """
    status = run_folder.read_status(folder)
    if other := begun.difference(_with(config, key=begun.dataset.key)):
        raise UserError(
            f"{folder} was begun with {other}; go on with: grbm resume {folder}, or choose another folder with --out."
        )
    if status.ended == "diverged":
        raise UserError(f"{folder} cannot go on, since a resumed run repeats itself exactly. {status}")
    return status.ended == "finished" and run_folder.has_weights(folder)
