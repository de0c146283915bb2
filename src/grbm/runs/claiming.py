"""Whose a run folder is: making and locking one, and removing a run with nothing that is not its own."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grbm.core.distributed import torchrun_id
from grbm.core.errors import UserError
from grbm.core.files import write_text
from grbm.core.typed import read_bytes
from grbm.runs import checkpoint
from grbm.runs import folder as run_folder
from grbm.runs.config import RunConfig
from grbm.runs.folder import CHECKPOINTS, CODES, CONFIG, IMPUTED, JOB, OWN, SCORES, WANDB, WRITTEN

TABLES = (".npy", ".npz", ".csv", ".tsv", ".parquet")  # suffixes of files in such folders


def refuse_taken(folder: Path, config: RunConfig, *, overwrite: bool) -> bool:
    """Raise UserError where a folder is not free for a new run; returns whether one is there, to be removed."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another folder with --out.")
    if folder.is_dir() and any(not _is_first(path) for path in folder.iterdir()):
        run_folder.refuse_links(folder)
        try:
            run_folder.read_config(folder)
        except (UserError, OSError) as error:
            raise UserError(f"{folder} is not empty and not a run; choose another folder with --out.") from error
        if not overwrite:
            ends = {"finished": "it is finished", "diverged": "it diverged"}
            how = ends.get(run_folder.read_status(folder).ended, "go on with --resume")
            raise UserError(f"{folder} already holds a run ({how}); choose another with --out, or add --overwrite.")
        if config.data is not None and _inside(config.data, folder):
            raise UserError(f"{config.data} lies in {folder}, which would be removed; move it away, or choose another.")
        return True
    return False


def _is_first(path: Path) -> bool:
    """Whether a run that was killed before it had a configuration left ``path``."""
    left = LEFT.fullmatch(path.name)
    return path.name == JOB or (left is not None and left[2] in (JOB, CONFIG) and path.is_file())


def create(folder: Path, config: RunConfig, *, overwrite: bool) -> None:
    """Claim a folder for a run. An existing run is removed only with ``overwrite``; other files are never touched."""
    if refuse_taken(folder, config, overwrite=overwrite):
        _remove(folder)
    try:
        claim(folder)
        write_text(folder / CONFIG, config.to_json())
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error}); choose another folder with --out.") from error


LEFT = re.compile(r"(.*/)?\.([^/]+)\.[a-z0-9_]{8}(\.\w+)?")  # by a kill: a file that was being replaced


def _is_own(name: str, written: set[str]) -> bool:
    """Whether the program writes files of this name, or left one on the way to it."""
    left = LEFT.fullmatch(name)
    if left is not None and left[1] in (f"{CODES}/", f"{IMPUTED}/", f"{SCORES}/") and left[2].endswith(TABLES):
        return True  # a name that is noted only when its file is whole
    names = [name, f"{left[1] or ''}{left[2]}"] if left else [name]
    return any(OWN.fullmatch(known) or known in written for known in names)


def _remove(folder: Path) -> None:
    """Remove the run in ``folder``; raises UserError, with everything still there, for what is not a run's.

    A kill on the way leaves a run that can be resumed or overwritten: checkpoints go first, each by one rename, so that
    none is half there, and the configuration, by which a run is known, goes last.
    """
    written = _written(folder)
    files, folders = [], []
    for path in sorted(folder.rglob("*"), reverse=True):  # what is in a folder before the folder
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            folders.append(path)
        elif _is_own(name, written) and (name.startswith(f"{WANDB}/") if path.is_symlink() else path.is_file()):
            files.append(path)
        else:
            raise UserError(
                f"{path} is not what `grbm train` wrote, so nothing was removed; move it away, or choose another "
                f"folder with --out."
            )
    for path in checkpoint.updates(folder / CHECKPOINTS):
        checkpoint.remove(path)
    files.remove(folder / CONFIG)
    for path in files:
        path.unlink(missing_ok=True)
    for path in folders:
        with suppress(OSError):  # one that holds nothing of ours and is empty goes too
            path.rmdir()
    (folder / CONFIG).unlink()


def note_written(folder: Path, *paths: Path) -> None:
    """Note that the program wrote ``paths``, whose names the user chose, where they lie in the run's folder."""
    inside = {p.resolve().relative_to(folder.resolve()).as_posix() for p in paths if _inside(p, folder)}
    if inside:
        write_text(folder / WRITTEN, "".join(f"{name}\n" for name in sorted(inside | _written(folder))))


def run_of(path: Path) -> Path | None:
    """The folder of the run that has ``path`` as one of its own files, there or not yet; None where there is none."""
    whole = path.resolve()
    for folder in whole.parents:
        if OWN.fullmatch(whole.relative_to(folder).as_posix()):
            with suppress(UserError, OSError):  # no run there
                RunConfig.read(folder / CONFIG)
                return folder
    return None


def _inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _written(folder: Path) -> set[str]:
    with suppress(OSError):
        return set(read_bytes(folder / WRITTEN).decode("utf-8", "replace").splitlines())
    return set()


def identity(folder: Path) -> tuple[int, int] | None:
    """Device and inode of a run's folder; None where there is no run."""
    with suppress(OSError):
        found = folder.stat()
        return (found.st_dev, found.st_ino) if (folder / CONFIG).is_file() else None
    return None


def is_held(folder: Path) -> bool:
    """Whether a process trains in ``folder`` now; False where the system has no such locks."""
    try:
        import fcntl
    except ImportError:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: it keeps nobody from training, as `locked` says
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder, made where it is not there; raises UserError where another process trains in it.

    The system lets go when the process ends, however it ends. Where there are no such locks (Windows), none is taken.
    A process that asks `is_held` has a shared lock for an instant, and is waited for.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error}); choose another folder with --out.") from error
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if is_held(folder):
                raise UserError(
                    f"Another process is training in {folder}; stop it, or train in another folder: grbm train ... "
                    f"--out"
                )
            time.sleep(0.001)
        yield
    finally:
        os.close(handle)


def claim(folder: Path) -> None:
    """Note which ``torchrun`` job began this run, so that its restarts go on with it."""
    if torchrun_id() is not None:
        write_text(folder / JOB, f"{torchrun_id()}\n")


def is_claimed(folder: Path) -> bool:
    """Whether this very job began the run, before one of its processes died."""
    own = torchrun_id()
    return own is not None and (folder / JOB).is_file() and (folder / JOB).read_text().strip() == own


def clean(folder: Path) -> None:
    """Remove what kills left of files and checkpoints that were being replaced."""
    checkpoint.clean(folder / CHECKPOINTS)
    written = _written(folder)
    for path in folder.rglob(".*"):
        name = path.relative_to(folder).as_posix()
        if LEFT.fullmatch(name) and _is_own(name, written) and path.is_file():
            path.unlink(missing_ok=True)
