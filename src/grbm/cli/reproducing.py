"""The command that reproduces a table or figure of the paper. Parse, call, print."""

from pathlib import Path
from typing import Any

from grbm.cli.common import note, parse, require
from grbm.cli.names import close
from grbm.cli.options import Figure1Options
from grbm.core.errors import UserError
from grbm.reproduce.targets import ABOUT, TARGETS, EverythingOptions, PaperOptions


def reproduce(args: list[str]) -> None:
    """`grbm reproduce`: a figure or table of the paper."""
    names = ", ".join(["all", "fig1", *sorted(TARGETS)])
    if not args or args[0] in ("-h", "--help"):
        print("usage: grbm reproduce WHAT [options]\n\nWHAT, each explained by grbm reproduce WHAT --help, is")
        print("  all     as much of all that as a time allows: --budget SECONDS")
        print("  fig1    five samplers on two mixtures: density and samples")
        print("\n".join(f"  {name:<6}  {text}" for name, text in sorted(ABOUT.items())))
        return
    if args[0] == "fig1":
        _figure1(args[1:])
    elif args[0] in ("all", *TARGETS):
        _paper(args[0], args[1:])
    else:
        hint = close(args[0], ["all", "fig1", *TARGETS])
        raise UserError(f"There is nothing called {args[0]!r} to reproduce{hint} Choose one of {names}.")


def _figure1(args: list[str]) -> None:
    from grbm.reproduce import figure1

    options = parse(Figure1Options, args, "grbm reproduce fig1")
    require("--jobs", options.jobs, 1)
    require("--seeds", options.seeds, 1)
    for flag, given, known in (("--only", options.only, figure1.TITLES), ("--rules", options.rules, figure1.RULES)):
        if unknown := [name for name in given if name not in known]:
            raise UserError(f"{flag} must be among {', '.join(known)}, not {unknown[0]!r}.")
    out = options.out or Path("runs") / f"fig1-{options.budget}"
    seeds = range(options.seed, options.seed + options.seeds)
    what: dict[str, Any] = {"budget": options.budget, "only": options.only, "rules": options.rules}
    print(figure1.target(out, at_once=options.jobs, seeds=seeds, **what).make())


def _paper(what: str, args: list[str]) -> None:
    from grbm.core.devices import pick_device
    from grbm.evaluate.features import Features, inception
    from grbm.reproduce import experiments

    options = parse(EverythingOptions if what == "all" else PaperOptions, args, f"grbm reproduce {what}")
    require("--jobs", options.jobs, 1)
    require("--seeds", options.seeds, 1)
    require("--fid-samples", options.fid_samples, 100)

    def judge() -> Features | None:
        return inception(options.fid_weights, "mnist", pick_device("auto"), note)

    if isinstance(options, EverythingOptions):
        require("--budget", options.budget, 1)
        print(experiments.reproduce_all(options, judge))
    else:
        print(experiments.target(what, options, judge).make())
