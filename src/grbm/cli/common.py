"""Parts that all commands share: reading their options, and the run that they are about."""

import math
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_origin, get_type_hints

import tyro

from grbm.cli.names import COMMANDS, close
from grbm.cli.options import Moved
from grbm.cli.piped import SIGN
from grbm.core.errors import UserError, unreadable
from grbm.core.streams import plain
from grbm.runs.config import Which

if TYPE_CHECKING:
    from grbm.runs import Run

T = TypeVar("T")
SYNONYMS = {"--epochs": "--updates (an epoch is (rows of data)/(--batch-size) of them)", "--learning-rate": "--lr"}


def call(command: str, args: list[str]) -> int | None:
    """Run a command; returns its exit code, if that is not 0."""
    function, kind = function_of(command)
    return function(args if kind == list[str] else parse(kind, args, f"grbm {command}"))


def function_of(command: str) -> tuple[Callable[[Any], int | None], Any]:
    """The function of a command, and the type of its argument: a dataclass of options, or a list of words."""
    function = pkgutil.resolve_name(f"grbm.cli.{COMMANDS[command].function}")
    return function, next(iter(get_type_hints(function).values()))


def parse(kind: type[T], args: list[str], prog: str, aliases: Mapping[str, str] = {}, **kwargs: Any) -> T:
    """The options of a command; explains them with --help.

    Raises UserError for an option that there is not, with those that are close, and for a run that there is not.
    """
    known = [*flags_of(kind), *aliases, "--help", "-h"]
    words = []
    for word in args:
        flag, equals, value = word.partition("=")
        name = flag.replace("_", "-")
        if name.startswith("--") and len(name) > 2 and name not in known and not name.startswith("--tyro-"):
            hint = f"; did you mean {SYNONYMS[name]}?" if name in SYNONYMS and aliases else close(name, known)
            raise UserError(f"{prog} has no option {flag}{hint} It explains its options with: {prog} --help")
        words.append(f"{aliases[name]}{equals}{value}" if name in aliases else word)
    options = tyro.cli(kind, args=words, prog=prog, **kwargs)
    run = getattr(options, "run", None)
    if isinstance(run, Path) and not (run / "config.json").is_file():  # said before anything heavy is loaded
        raise UserError(f"{run} is not a run (it has no config.json); give a folder that `grbm train` made.")
    file = getattr(options, "file", None)
    if isinstance(file, Path) and str(file) != SIGN and not file.exists():
        raise unreadable(file, FileNotFoundError())
    return options


def flags_of(kind: Any, prefix: str = "") -> Iterator[str]:
    """The flags of a dataclass of options, those of dataclasses in it too."""
    hints = get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        hint, marks = hints[f.name], []
        while hasattr(hint, "__metadata__"):
            marks += hint.__metadata__
            hint = hint.__origin__
        if tyro.conf.Positional in marks or tyro.conf.Suppress in marks or get_origin(hint) is tyro.conf.Positional:
            continue
        name = f.name.replace("_", "-")
        if is_dataclass(hint):
            yield from flags_of(hint, prefix if tyro.conf.OmitArgPrefixes in marks else f"{prefix}{name}.")
        else:
            yield f"--{prefix}{name}"
            if hint is bool:
                yield f"--{prefix}no-{name}"


def read_run(folder: Path, which: Which = "model", moved: Moved = Moved(), *, quiet: bool = False) -> "Run":
    """A run, with its data where they are now; says so if its training ended early. ``quiet`` keeps stdout clean."""
    from grbm.report.words import ending
    from grbm.runs import read
    from grbm.runs.paper import describe

    run = read(folder, which, note)
    if run.status.ended != "finished":
        note(f"{folder}: {ending(run)}")
    if text := describe(run.config):
        print(plain(text), file=sys.stderr if quiet else sys.stdout)
    config = moved.of(run.config)
    if moved.data is not None:
        config.check()  # a run on a data set of its own takes no other
    return run._replace(config=config)


def note(text: str) -> None:
    """Something that the user should know, beside what was asked for."""
    print(f"Note: {plain(text)}", file=sys.stderr)


def note_units(far: float) -> None:
    """Say so where rows lie far out, ``far`` times as far as the training data."""
    if math.isfinite(far) and far > 3:
        note(
            f"these rows lie {far:.0f} times as far from the training mean as the training data do; are they in the "
            f"same units?"
        )


def require(flag: str, number: float | None, least: float) -> None:
    """Raise UserError for an option that is given, and not a finite number of at least so much."""
    if number is not None and not least <= number < 2**53:
        raise UserError(f"{flag} must be at least {least}, and below 2^53, got {number}.")


def refuse_out(overwrite: bool, *paths: Path) -> None:
    """Raise UserError for a file to write where one is that a run is made of, or any that may not be replaced."""
    from grbm.runs import run_of

    for path in paths:
        if (run := run_of(path)) is not None:
            raise UserError(f"{path} is the place of a file of the run in {run}; choose another.")
    for path in paths:
        if path.exists() and not overwrite:
            raise UserError(f"{path} already exists; add --overwrite to replace it, or choose another.")
