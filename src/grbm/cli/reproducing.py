"""The command that reproduces a table or figure of the paper. Parse, call, print."""

from typing import TYPE_CHECKING

from grbm.cli.common import note, parse, require
from grbm.cli.names import close
from grbm.core.errors import UserError
from grbm.reproduce.targets import ABOUT, TARGETS, EverythingOptions, Figure1Options, PaperOptions

if TYPE_CHECKING:
    from grbm.evaluate.features import Features

KINDS = {"all": EverythingOptions, "fig1": Figure1Options, **dict.fromkeys(sorted(TARGETS), PaperOptions)}


def reproduce(args: list[str]) -> None:
    """`grbm reproduce`: a figure or table of the paper."""
    if not args or args[0] in ("-h", "--help"):
        print("usage: grbm reproduce WHAT [options]\n\nWHAT, each explained by grbm reproduce WHAT --help, is")
        print("  all     as much of all that as a time allows: --budget SECONDS")
        print("  fig1    five samplers on two mixtures: density and samples")
        print("\n".join(f"  {name:<6}  {text}" for name, text in sorted(ABOUT.items())))
        return
    what = args[0]
    if what not in KINDS:
        hint = close(what, ["all", "fig1", *TARGETS])
        raise UserError(f"There is nothing called {what!r} to reproduce{hint} Choose one of {', '.join(KINDS)}.")
    options: PaperOptions | Figure1Options = parse(KINDS[what], args[1:], f"grbm reproduce {what}")
    require("--jobs", options.jobs, 1)
    require("--seeds", options.seeds, 1)
    if isinstance(options, Figure1Options):
        from grbm.reproduce import figure1

        for flag, given, known in (("--only", options.only, figure1.TITLES), ("--rules", options.rules, figure1.RULES)):
            if unknown := [name for name in given if name not in known]:
                raise UserError(f"{flag} must be among {', '.join(known)}, not {unknown[0]!r}.")
        print(figure1.target(options).make())
        return
    require("--fid-samples", options.fid_samples, 100)
    from grbm.core.devices import pick_device
    from grbm.evaluate.features import inception
    from grbm.reproduce import experiments

    def judge() -> "Features | None":
        return inception(options.fid_weights, "mnist", pick_device("auto"), note)

    if isinstance(options, EverythingOptions):
        require("--budget", options.budget, 1)
        print(experiments.reproduce_all(options, judge))
    else:
        print(experiments.target(what, options, judge).make())
