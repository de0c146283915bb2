"""The commands that show a run: its figures, its page, several runs side by side. Parse, call, print."""

import json
from pathlib import Path

from grbm.cli.common import note, read_run, refuse_out
from grbm.cli.options import CompareOptions, FiguresOptions, ListOptions, ReportOptions
from grbm.core.errors import UserError


def figures(options: FiguresOptions) -> None:
    """`grbm figures`: every figure of a run, drawn again."""
    from grbm.report.figures import draw

    for path in draw(read_run(options.run, moved=options.moved), seed=options.seed):
        print(f"  {path}")


def report(options: ReportOptions) -> None:
    """`grbm report`: the page of a run."""
    from grbm.report.page import report

    run = read_run(options.run, moved=options.moved)
    print(f"  {report(run, seed=options.seed, warn=note)}")


def compare(options: CompareOptions) -> None:
    """`grbm compare`: several runs side by side."""
    if len(options.runs) < 2:
        raise UserError("grbm compare needs two runs or more; for one there is grbm report.")
    refuse_out(options.overwrite, options.out)
    from grbm.report.comparing import compare
    from grbm.report.words import aligned
    from grbm.runs import note_written

    table = compare([read_run(folder) for folder in options.runs], options.out, seed=options.seed, warn=note)
    for folder in options.runs:
        note_written(folder, options.out)
    print("\n".join(aligned(table)))
    print(f"  {options.out}")


def list_runs(options: ListOptions) -> None:
    """`grbm list`: the runs in a folder."""
    if not options.folder.is_dir() and options.folder != Path("runs"):
        raise UserError(f"{options.folder} is not a folder; grbm list FOLDER shows the runs in one.")
    from grbm.report.listing import runs_in, table

    listed = list(runs_in(options.folder))
    if options.json:
        print(json.dumps([run._asdict() for run in listed], indent=2))
    elif listed:
        print("\n".join(table(listed)))
    else:
        print(f"There is no run in {options.folder}; grbm train PRESET makes one.")
