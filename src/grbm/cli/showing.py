"""The commands that show a run: its figures, its page, several runs side by side. Parse, call, print."""

from grbm.cli.common import parse, read_run, refuse_existing
from grbm.cli.options import CompareOptions, FiguresOptions, ReportOptions
from grbm.errors import UserError


def figures(args: list[str]) -> None:
    """`grbm figures`: every figure of a run, drawn again."""
    from grbm.report.figures import draw

    options = parse(FiguresOptions, args, "grbm figures")
    for path in draw(read_run(options.run, options.data_dir, options.data), seed=options.seed):
        print(f"  {path}")


def report(args: list[str]) -> None:
    """`grbm report`: the page of a run."""
    from grbm.report.page import report

    options = parse(ReportOptions, args, "grbm report")
    print(f"  {report(read_run(options.run, options.data_dir, options.data), seed=options.seed)}")


def compare(args: list[str]) -> None:
    """`grbm compare`: several runs side by side."""
    from grbm.report.page import compare

    options = parse(CompareOptions, args, "grbm compare")
    if len(options.runs) < 2:
        raise UserError("grbm compare needs two runs or more; for one there is grbm report.")
    refuse_existing(options.out, options.overwrite, ", or choose another with --out")
    table = compare([read_run(folder, None, None) for folder in options.runs], options.out, seed=options.seed)
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    for row in table:
        print("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    print(f"  {options.out}")
