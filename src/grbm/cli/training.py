"""The commands that train: `grbm train` and `grbm resume`. Parse, call, print."""

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from grbm import distributed, runs
from grbm.cli.common import parse
from grbm.cli.options import ResumeOptions, TrainOptions
from grbm.errors import UserError
from grbm.runs import RunConfig
from grbm.runs.config import Dynamics
from grbm.runs.paper import EXPERIMENTS, changed_by_hand, configure, describe
from grbm.runs.presets import PRESETS
from grbm.runs.training import train as learn


def train(args: list[str]) -> None:
    """`grbm train`: learn a data set."""
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
    if text := describe(config):
        print(text)
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


def resume(args: list[str]) -> None:
    """`grbm resume`: go on where a run was stopped or killed."""
    options = parse(ResumeOptions, args, "grbm resume")
    if not (options.run / runs.CONFIG).is_file():
        raise UserError(f"{options.run} is not a run (it has no {runs.CONFIG}); give a folder that `grbm train` made.")
    config = RunConfig.read(options.run / runs.CONFIG)
    given = {name: getattr(options, name) for name in ("device", "data_dir", "data")}
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    _run(config, options.run, overwrite=False, resume=True, figures=options.figures)


def _run(config: RunConfig, folder: Path, *, overwrite: bool, resume: bool, figures: bool) -> None:
    """Train, alone or as one of the processes that ``torchrun`` started, and draw."""
    from grbm.runs.progress import Progress

    group, device = distributed.join(config.device)
    try:
        with Progress(config.train.n_updates) as progress:
            learn(
                config,
                folder,
                overwrite=overwrite,
                resume=resume,
                group=group,
                device=device,
                on_start=progress.start,
                on_update=progress.update if group.is_leader else lambda update, record: None,
            )
    except RuntimeError as error:
        if not distributed.lost(error):
            raise
        raise UserError("Another process of this job ended; read its message, then go on with --resume.") from error
    finally:
        distributed.leave()
    if not group.is_leader:
        return
    trained = progress.task is not None
    print(
        f"Trained in {progress.seconds:.0f} s; the run is in {folder}" if trained else f"{folder} was finished already"
    )
    if figures:
        from grbm.report.figures import draw
        from grbm.report.page import report

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
