"""The command line: parse, call, print. No mathematics here."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from grbm import __version__, applying, inspection
from grbm.config import RunConfig
from grbm.errors import DivergenceError, StoppedError, UserError
from grbm.inspection import parse
from grbm.options import (
    Figure1Options,
    PaperOptions,
    ResumeOptions,
    TrainOptions,
)
from grbm.paper import EXPERIMENTS, Dynamics, changed_by_hand, configure
from grbm.presets import PRESETS

USAGE = """\
grbm: Gaussian-Bernoulli restricted Boltzmann machines

  grbm train PRESET      learn a data set; writes a run folder with weights, metrics and figures
  grbm resume RUN        go on where a run was stopped or killed
  grbm sample RUN        draw samples from noise, as numbers and as a picture
  grbm encode RUN WHAT   binary codes of data: hidden probabilities or drawn bits
  grbm impute RUN FILE   fill in what is missing of an array, or take noise away
  grbm export RUN OUT    for other programs: ONNX, torch.export, or a folder of weights
  grbm evaluate RUN      likelihoods, reconstruction, free energies; for mixtures exact scores
  grbm mixing RUN        do its chains mix? R-hat, effective sample size, swap rates
  grbm doctor RUN        what is wrong with a run, or fine, and what to change
  grbm figures RUN       draw the run's figures again
  grbm report RUN        a page of it all, to look at and to pass on
  grbm compare RUN RUN   runs side by side, in the terminal and on a page
  grbm reproduce WHAT    a figure or table of the paper: fig1 to fig9, table1 to table3

Start with `grbm train digits` (half a minute at most). Every command explains itself with --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 (a run diverged), 2 (bad input), 130 or 143 (stopped by a signal)."""
    args = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": _train,
        "resume": _resume,
        "sample": inspection.sample,
        "encode": applying.encode,
        "impute": applying.impute,
        "export": applying.export,
        "evaluate": inspection.evaluate,
        "mixing": inspection.mixing,
        "doctor": inspection.doctor,
        "figures": inspection.figures,
        "report": inspection.report,
        "compare": inspection.compare,
        "reproduce": _reproduce,
    }
    if args[:1] == ["--version"]:
        print(f"grbm {__version__}")
        return 0
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    try:
        if args[0] not in commands:
            raise UserError(f"There is no command {args[0]!r}; choose one of {', '.join(commands)}.")
        commands[args[0]](args[1:])
    except UserError as error:
        if not error.told:
            print(f"grbm: {error}", file=sys.stderr)
        return 2
    except (DivergenceError, StoppedError) as error:
        if os.environ.get("RANK", "0") == "0":  # all processes of a job come here together
            print(f"grbm: {error}", file=sys.stderr)
        return 1 if isinstance(error, DivergenceError) else 128 + error.signal
    except OSError as error:
        if not getattr(error, "told", False):
            print(f"grbm: {error}; check the path, its permissions and the space on the disk.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("grbm: interrupted.", file=sys.stderr)
        return 130
    return 0


def _train(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        width = max(map(len, PRESETS))
        print("usage: grbm train PRESET [options]\n\nPresets (grbm train PRESET --help shows what can be changed):")
        print("\n".join(f"  {name:<{width}}  {preset.summary}" for name, preset in PRESETS.items()))
        return
    name, rest = args[0], args[1:]
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    preset, rest = PRESETS[name].config, list(rest)
    if name in EXPERIMENTS:
        dynamics, rest = _taken(rest, "--dynamics", "paper")
        scale, rest = _taken(rest, "--scale", "1")
        if dynamics not in get_args(Dynamics):
            raise UserError(f"--dynamics must be one of {', '.join(get_args(Dynamics))}, not {dynamics!r}.")
        try:
            factor = float(scale)
        except ValueError as error:
            raise UserError(f"--scale must be a number, not {scale!r}.") from error
        preset = configure(name, dynamics, factor)  # type: ignore[arg-type]
    defaults = TrainOptions(**{f.name: getattr(preset, f.name) for f in fields(RunConfig)})
    options = parse(TrainOptions, rest, f"grbm train {name}", default=defaults, description=PRESETS[name].summary)
    config = _settle(RunConfig(**{f.name: getattr(options, f.name) for f in fields(RunConfig)}), preset)
    if name in EXPERIMENTS:
        config = changed_by_hand(preset, config)
    config = replace(config, command=shlex.join(["grbm", "train", *args]))
    if config.about:
        print(config.about)
    folder = options.out or Path("runs") / name
    _run(config, folder, overwrite=options.overwrite, resume=options.resume, figures=options.figures)


def _taken(args: list[str], flag: str, default: str) -> tuple[str, list[str]]:
    """The value of a flag that shapes the preset itself, and the arguments without it."""
    for k, word in enumerate(args):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2], args[:k] + args[k + 1 :]
        if word == flag:
            if k + 1 == len(args):
                raise UserError(f"{flag} needs a value.")
            return args[k + 1], args[:k] + args[k + 2 :]
    return default, args


def _resume(args: list[str]) -> None:
    from grbm import runs

    options = parse(ResumeOptions, args, "grbm resume")
    if not (options.run / runs.CONFIG).is_file():
        raise UserError(f"{options.run} is not a run (it has no {runs.CONFIG}); give a folder that `grbm train` made.")
    config = RunConfig.read(options.run / runs.CONFIG)
    given = {name: getattr(options, name) for name in ("device", "data_dir", "data")}
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    _run(config, options.run, overwrite=False, resume=True, figures=options.figures)


def _run(config: RunConfig, folder: Path, *, overwrite: bool, resume: bool, figures: bool) -> None:
    """Train, alone or as one of the processes that ``torchrun`` started, and draw."""
    from grbm import distributed, experiment, runs
    from grbm.progress import Progress

    share, device = distributed.join(config.device)
    try:
        with Progress(config.train.n_updates) as progress:
            experiment.train(
                config,
                folder,
                overwrite=overwrite,
                resume=resume,
                share=share,
                device=device,
                on_start=progress.start,
                on_update=progress.update if share.leads else lambda update, record: None,
            )
    except RuntimeError as error:
        if not distributed.lost(error):
            raise
        raise UserError("Another process of this job ended; read its message, then go on with --resume.") from error
    finally:
        distributed.leave()
    if not share.leads:
        return
    trained = progress.task is not None
    print(
        f"Trained in {progress.seconds:.0f} s; the run is in {folder}" if trained else f"{folder} was finished already"
    )
    if figures:
        from grbm.drawing import draw
        from grbm.page import report

        print("Drawing figures and the page ...", flush=True)
        run = runs.read(folder)
        run = run._replace(config=replace(run.config, data_dir=config.data_dir, data=config.data))
        for path in [*draw(run), report(run)]:
            print(f"  {path}")
    print(f"Next: grbm evaluate {folder}")


def _settle(config: RunConfig, preset: RunConfig) -> RunConfig:
    """When only a sampler's name was changed, the options that the preset gave to the other one go with it."""

    def settle(chosen: Any, default: Any) -> Any:
        if chosen.name == default.name:
            return chosen
        left = {f.name: None for f in fields(chosen) if f.name != "name"}
        own = {k: getattr(chosen, k) for k in left if getattr(chosen, k) != getattr(default, k)}
        return replace(chosen, **(left | own))

    sampling = config.sampling
    sampler = settle(config.sampler, preset.sampler)
    if sampling.sampler == preset.sampling.sampler == preset.sampler:  # the run samples as it trains
        sampling = replace(sampling, sampler=sampler)
    else:
        sampling = replace(sampling, sampler=settle(sampling.sampler, preset.sampling.sampler))
    return replace(config, sampler=sampler, sampling=sampling)


def _reproduce(args: list[str]) -> None:
    from grbm.tables import ABOUT, TARGETS

    names = ", ".join(["fig1", *sorted(TARGETS)])
    if not args or args[0] in ("-h", "--help"):
        print("usage: grbm reproduce WHAT [options]\n\nWHAT, each explained by grbm reproduce WHAT --help, is")
        print("  fig1    five samplers on two mixtures: density and samples")
        print("\n".join(f"  {name:<6}  {text}" for name, text in sorted(ABOUT.items())))
        return
    if args[0] == "fig1":
        _figure1(args[1:])
    elif args[0] in TARGETS:
        _paper(args[0], args[1:])
    else:
        raise UserError(f"There is nothing called {args[0]!r} to reproduce; choose one of {names}.")


def _figure1(args: list[str]) -> None:
    from grbm.figure1 import reproduce

    options = parse(Figure1Options, args, "grbm reproduce fig1")
    if options.jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {options.jobs}.")
    out = options.out or Path("runs") / f"fig1-{options.budget}"
    print(reproduce(out, budget=options.budget, jobs_at_once=options.jobs, seed=options.seed))


def _paper(what: str, args: list[str]) -> None:
    from grbm import tables
    from grbm.evaluate.features import inception
    from grbm.runs import pick_device

    options = parse(PaperOptions, args, f"grbm reproduce {what}")
    for name, number, least in (("jobs", options.jobs, 1), ("fid-samples", options.fid_samples, 100)):
        if number is not None and number < least:
            raise UserError(f"--{name} must be at least {least}, got {number}.")
    device = pick_device("auto")
    scale = 1.0 if options.scale is None and device.type == "cuda" else options.scale
    made = tables.Options(
        options.out or Path("runs") / f"{options.dynamics}-{'cpu' if scale is None else f'{scale:g}'}",
        options.dynamics,
        scale,
        options.data_dir,
        options.data,
        options.seed,
        options.jobs or (1 if device.type == "cuda" else 2),
        options.mean,
    )

    def judge(dataset: str) -> Any:
        return inception(options.fid_weights, dataset, device, lambda text: print(f"Note: {text}", file=sys.stderr))

    print(tables.reproduce(what, made, judge, options.fid_samples))


if __name__ == "__main__":
    sys.exit(main())
