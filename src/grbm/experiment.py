"""`grbm train` and `grbm resume`: from a configuration to a run folder, through whatever happens on the way."""

import hashlib
import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grbm import checkpoint, runs
from grbm.config import RunConfig
from grbm.data.loading import Dataset, load, standardizer, statistics
from grbm.data.rows import Rows, spread
from grbm.data.standardise import Standardised, Standardizer
from grbm.distributed import ALONE, Share
from grbm.errors import DivergenceError, StoppedError, UserError
from grbm.initialise import anchored_, sparse_
from grbm.logs import Log, Record
from grbm.logs import check as check_log
from grbm.model import GRBM, Base
from grbm.objectives import Objective
from grbm.paper import with_rows
from grbm.recorder import Recorder
from grbm.samplers.run import engine
from grbm.training import TrainState, fit


def _warn(message: str) -> None:
    print(f"grbm: {message}", file=sys.stderr, flush=True)


def train(
    config: RunConfig,
    folder: Path,
    *,
    overwrite: bool = False,
    resume: bool = False,
    share: Share = ALONE,
    device: str | None = None,
    on_start: Callable[[Tensor | Standardised, GRBM, int], None] = lambda data, model, update: None,
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
    share, device
        This process's part and device, from `grbm.distributed.join`; all processes must make the same call.
    on_start, on_update : callable
        Called with the data, model and update at the start, and with every update and the record where one was logged.
    warn : callable
        Called with what the user should know, such as a damaged checkpoint.

    Raises
    ------
    DivergenceError
        When numbers leave the finite world; the last good weights are kept.
    StoppedError
        After SIGINT or SIGTERM, when the update is finished and a checkpoint written.
    UserError
        For bad input, a run that is there already, other settings than those of the run resumed, a full disk.
    """
    with ExitStack() as held:
        _train(config, folder, overwrite, resume, share, device, on_start, on_update, warn, held)


def _train(
    config: RunConfig,
    folder: Path,
    overwrite: bool,
    resume: bool,
    share: Share,
    device: str | None,
    on_start: Callable[[Tensor | Standardised, GRBM, int], None],
    on_update: Callable[[int, Record | None], None],
    warn: Callable[[str], None],
    held: ExitStack,
) -> None:
    share.lead(config.check)
    share.lead(lambda: check_log(config))
    resume = share.from_leader(resume or runs.is_claimed(folder))
    if resume and share.from_leader(share.lead(lambda: _is_finished(folder, config))):
        return
    resume = share.from_leader(resume and (folder / runs.CONFIG).is_file())
    dataset = share.lead(lambda: load(config)) or load(config)  # the leader first: a download happens once
    config = with_rows(config, len(dataset.train))
    scale, base = share.from_leader(share.lead(lambda: _statistics(config, dataset, folder, resume)))
    torch_device = runs.pick_device(device or config.device)
    data = _standardised(dataset, scale, torch_device)
    plan = share.lead(lambda: _plan(config, len(data), base, share))
    n_blocks, objective = plan or _plan(config, len(data), base, share)

    model = GRBM(data.shape[1], config.model.n_hidden, seed=config.seed)
    if config.model.start != "paper":
        some = data[spread(len(data), 10_000)].cpu()
        if config.model.start == "anchored":
            var, length = config.model.anchor_var, config.model.anchor_length
            anchored_(model, some, var=var, length=length, seed=config.seed)
        else:
            sparse_(model, some, seed=config.seed)
    model = model.to(torch_device)
    state = TrainState(model, config.train.build(model), seed=config.seed)
    run = _name_of(config)
    mark = _fingerprint(dataset)
    if share.from_leader(mark) != mark:
        raise UserError("The processes have different data; give all of them the same --data or --data-dir.")

    share.lead(lambda: held.enter_context(runs.locked(folder)))
    saved = None
    if resume:
        checkpoints = folder / runs.CHECKPOINTS
        saved = share.from_leader(share.lead(lambda: checkpoint.newest(checkpoints, state, run=run, warn=warn)))
    if saved is not None:
        share.lead(lambda: _check_data(folder, saved, mark))
        checkpoint.restore(state, saved, share)
    if not resume:  # only now, when nothing in the configuration can fail any more
        share.lead(lambda: runs.create(folder, config, overwrite=overwrite))
    log = share.lead(lambda: _open(folder, config, state.update, scale, base, dataset))
    notes = saved.record["notes"] if saved is not None else {"seconds": 0.0, "clipped": 0, "since": 0, "scores": []}
    seen = data[spread(len(data), 512)]
    test = scale(dataset.test[:512]).to(torch_device)
    code = engine(torch_device)
    if notes.get("engine", code) != code:
        warn(f"The chains ran in {notes['engine']} code and go on in {code} code: as good, with other random numbers.")
    notes = {**notes, "data": mark, "engine": code}
    recorder = Recorder(config, folder, state, share, log, run, notes, seen, test, _painter(scale, dataset))
    if share.leads:
        on_start(data, model, state.update)
    try:
        with _stopping_cleanly(share) as asked:
            for metrics in fit(
                state,
                data,
                objective,
                n_updates=config.train.n_updates,
                batch_size=min(config.train.batch_size, len(data)),
                centred=config.train.centred,
                clip_norm=config.train.clip_norm,
                min_var=config.train.min_var,
                average_decay=config.train.average_decay,
                n_blocks=n_blocks,
                share=share,
                precision=config.precision,
                anneal_step_size=config.train.anneal_step_size,
            ):
                on_update(state.update, recorder.after(metrics))
                if "stop" in share.agreed and state.update < config.train.n_updates:
                    recorder.save()
                    recorder.finish(f"interrupted at update {state.update}")
                    go_on = f"the checkpoint is written; go on with: grbm resume {folder}"
                    raise StoppedError(f"stopped after update {state.update:,} and {go_on}", asked[0] if asked else 0)
            recorder.save()
            recorder.finish("")
    except DivergenceError as error:
        state.average = None  # it has taken in the step that went wrong; the parameters have taken it back
        recorder.finish(str(error))
        raise DivergenceError(f"{error} The last good weights are in {folder / runs.WEIGHTS}.") from error
    except OSError as error:
        raise UserError(
            f"{folder} could not be written after update {state.update} ({error.strerror or error}); "
            f"{recorder.last_saved()}"
        ) from error
    finally:
        if log is not None:
            with suppress(OSError):  # all that counts was flushed before
                log.close()


def _plan(config: RunConfig, n_rows: int, base: Base, share: Share) -> tuple[int, Objective]:
    """The number of blocks and the objective; raises UserError for what cannot be built or shared."""
    batch_size = min(config.train.batch_size, n_rows)
    objective = config.objective.build(config.sampler.build(base), batch_size)
    config.sampling.sampler.build(base)  # so that a wrong option is refused now and not after training
    n_chains = getattr(objective, "n_chains", None) or batch_size
    n_blocks = math.gcd(config.train.blocks, batch_size, n_chains)
    if n_blocks % share.world:
        raise UserError(
            f"{share.world} processes cannot share {config.train.blocks} blocks of {batch_size} rows and {n_chains} "
            f"chains evenly; choose --train.blocks, --train.batch-size and --objective.n-chains that {share.world} "
            f"divides."
        )
    if share.world > 1 and objective.sampler.anneals:
        raise UserError(
            "Annealed chains are resampled among all, which processes cannot share; choose another sampler."
        )
    return n_blocks, objective


def _statistics(config: RunConfig, dataset: Dataset, folder: Path, resume: bool) -> tuple[Standardizer, Base]:
    """The standardisation and the base of tempered paths: of the run where it has them, else of the data."""
    if resume and (folder / runs.DATA).is_file():
        return runs.read_data(folder)[:2]
    stats = statistics(config, dataset)
    scale = standardizer(config, dataset, stats)
    return scale, scale.base(stats)


def _standardised(dataset: Dataset, scale: Standardizer, device: torch.device) -> Tensor | Standardised:
    """The training rows as the model sees them: on its device where they are in memory, else read when needed."""
    if isinstance(dataset.train, Rows):
        return Standardised(dataset.train, scale, device)
    return scale(dataset.train).to(device)


def _painter(scale: Standardizer, dataset: Dataset) -> Callable[[Tensor], np.ndarray] | None:
    """What turns standardised rows into one picture, where they are images."""
    shape = dataset.image_shape
    if shape is None:
        return None
    from grbm.plots import tile

    return lambda rows: tile(scale.inverse(rows.cpu()), shape, 16)


def _open(folder: Path, config: RunConfig, update: int, scale: Standardizer, base: Base, dataset: Dataset) -> Log:
    runs.clean(folder)
    runs.save_data(folder, scale, base, dataset.image_shape)
    for name in (runs.STATUS, runs.EVALUATION, runs.MIXING, runs.TRACE, runs.FID, runs.REPORT):
        (folder / name).unlink(missing_ok=True)  # of weights that will not be the run's
    return Log(folder, config, update)


def _name_of(config: RunConfig) -> str:
    """A short name for what decides the numbers; settings at their default do not enter, so new ones may be added."""
    usual = RunConfig().identity()
    chosen = {name: value for name, value in config.identity().items() if value != usual[name]}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


def _fingerprint(dataset: Dataset) -> str:
    """What tells these data from others: their size and some of their rows."""
    rows = dataset.train[spread(len(dataset.train), 64)]
    return f"{len(dataset.train)} x {rows.shape[1]}, {hashlib.sha256(rows.double().numpy().tobytes()).hexdigest()[:16]}"


def _check_data(folder: Path, saved: checkpoint.Checkpoint, mark: str) -> None:
    if saved.record["notes"]["data"] != mark:
        raise UserError(f"The data are not those that {folder} was trained on so far; give the same data.")


def _is_finished(folder: Path, config: RunConfig) -> bool:
    """Whether there is nothing left to resume; raises UserError where the run cannot be, or is not, this one."""
    if not (folder / runs.CONFIG).is_file():
        return False
    other = RunConfig.read(folder / runs.CONFIG).difference(config)
    if other is not None:
        raise UserError(
            f"{folder} was begun with {other}; go on with: grbm resume {folder}, or choose another folder with --out."
        )
    status = runs.read_status(folder)
    if status is not None and status and not status.startswith("interrupted"):
        raise UserError(f"{folder} cannot go on, since a resumed run repeats itself exactly. {status}")
    return status == "" and (folder / runs.WEIGHTS).is_file()


@contextmanager
def _stopping_cleanly(share: Share) -> Iterator[list[int]]:
    """SIGINT and SIGTERM ask for a stop after the update; a second SIGINT stops at once. Yields the signals heard."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard  # signals are the main thread's alone
        return

    def ask(number: int, frame: object) -> None:
        heard.append(number)
        share.wishes.add("stop")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
