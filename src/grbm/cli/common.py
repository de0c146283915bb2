"""What all commands share: reading their options, and the run that they are about."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import tyro

from grbm.errors import UserError
from grbm.report.words import ending
from grbm.runs import Run, Which, read
from grbm.runs.paper import describe

T = TypeVar("T")


def parse(kind: type[T], args: list[str], prog: str, **kwargs: Any) -> T:
    """The options of a command; explains them with --help."""
    return tyro.cli(kind, args=args, prog=prog, **kwargs)


def read_run(folder: Path, data_dir: Path | None, data: Path | None, which: Which = "model") -> Run:
    """A run, with its data where they are now; says so if its training ended early."""
    run = read(folder, which, note)
    if run.status.ended != "finished":
        note(ending(run))
    if text := describe(run.config):
        print(text)
    config = replace(run.config, data_dir=data_dir or run.config.data_dir, data=data or run.config.data)
    return run._replace(config=config)


def note(text: str) -> None:
    """Something that the user should know, beside what was asked for."""
    print(f"Note: {text}", file=sys.stderr)


def require(flag: str, number: float | None, least: float) -> None:
    """Raise UserError for an option that is given, and not a finite number of at least so much."""
    if number is not None and not least <= number < 2**53:
        raise UserError(f"{flag} must be at least {least}, and below 2^53, got {number}.")


def refuse_existing(path: Path, overwrite: bool, other: str = "") -> None:
    """Raise UserError where a file would be replaced that the user did not mean to; ``other`` says how else."""
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists; add --overwrite to replace it{other}.")
