"""The command line: which command it is, and how it ends. Each is a few lines that parse, call and print."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from grbm import __version__
from grbm.cli.names import COMMANDS, close
from grbm.core.errors import DivergenceError, StoppedError, UserError
from grbm.core.streams import plain, printing

LINES = "\n".join(f"  grbm {f'{name} {takes}':<16}  {does}" for name, (_, takes, does) in COMMANDS.items())
USAGE = f"""\
grbm: Gaussian-Bernoulli restricted Boltzmann machines

{LINES}

Start with `grbm train digits` (a minute at most). Every command explains itself with --help.
Exit codes: 0; 1, a run diverged; 2, bad input; 3, the doctor found something wrong;
129, 130 or 143, stopped by a signal."""
# How often a thread of PyTorch that waits for others looks before it sleeps, read when PyTorch is imported. By GCC's
# default they look for milliseconds, which beside a busy program may cost a whole turn; fewer cost time on idle cores.
SPIN_COUNT = "8000"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code, as `USAGE` lists them."""
    with printing() as lost:
        code = _main(list(sys.argv[1:] if argv is None else argv))
        if (error := lost()) is not None:
            _say(f"the output could not be written ({error.strerror}); free some space, or send it elsewhere.")
            code = code or 2
    return code


def _main(args: list[str]) -> int:
    if args[:1] == ["--version"]:
        print(f"grbm {__version__}")
        return 0
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    before = _quit_cleanly()
    try:
        if args[0] not in COMMANDS:  # nothing heavy is loaded for a name that is none
            known = ", ".join(COMMANDS)
            raise UserError(f"There is no command {args[0]!r}{close(args[0], COMMANDS)} Choose one of {known}.")
        from grbm.cli.common import call

        return call(args[0], args[1:]) or 0
    except UserError as error:
        if not error.told:
            _say(error)
        return 2
    except (DivergenceError, StoppedError) as error:
        if os.environ.get("RANK", "0") == "0":  # all processes of a job come here together
            _say(error)
        return 1 if isinstance(error, DivergenceError) else 128 + error.signal
    except OSError as error:
        if not getattr(error, "told", False):
            _say(f"{error}; check the path, its permissions and the space on the disk.")
        return 2
    except MemoryError:
        _say("the memory is full; use fewer hidden units, chains or samples, or a computer with more.")
        return 2
    except RuntimeError as error:
        if not _of_memory(error):
            raise
        _say("the device's memory is full; use fewer hidden units, chains or samples, or a device with more.")
        return 2
    except KeyboardInterrupt:
        _say("interrupted.")
        return 130
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _say(text: object) -> None:
    """Print a sentence as an error: one line, whatever names are in it."""
    print(f"grbm: {plain(str(text))}", file=sys.stderr)


def _quit_cleanly() -> Any:
    """Let an interrupt during an import end the program at once; returns the handler before, if it was changed.

    PyTorch imports NumPy in C, where a KeyboardInterrupt gets lost, and what is imported next fails in odd ways.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        return None

    def interrupt(number: int, frame: FrameType | None) -> None:
        here = frame
        while here is not None:
            if here.f_code.co_filename.startswith("<frozen importlib"):
                os.write(2, b"grbm: interrupted.\n")
                os._exit(130)
            here = here.f_back
        raise KeyboardInterrupt

    return signal.signal(signal.SIGINT, interrupt)


def _of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch could not get memory: on a CPU its error has no kind of its own."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
