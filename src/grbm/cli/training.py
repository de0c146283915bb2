"""The commands that train: `grbm train` and `grbm resume`. Parse, call, print."""

import shlex
from argparse import ArgumentError, ArgumentParser, Namespace
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from grbm.cli.common import parse
from grbm.cli.names import close
from grbm.cli.options import Moved, ResumeOptions, TrainOptions
from grbm.cli.piped import SIGN
from grbm.core.errors import UserError
from grbm.core.streams import aligned, plain
from grbm.data.kinds import as_array, holds_pictures, is_arrow, table_kind
from grbm.runs.config import Dynamics, RunConfig
from grbm.runs.paper import EXPERIMENTS, changed_by_hand, configure, describe
from grbm.runs.presets import PRESETS, Preset

SHORT = {  # what everyone sets
    "--n-hidden": "--model.n-hidden",
    "--updates": "--train.n-updates",
    "--lr": "--train.learning-rate",
    "--batch-size": "--train.batch-size",
    "--sampler": "--sampler.name",
}
ONLY_OF_TABLES = ("--dataset.coarse", "--dataset.censor", "--dataset.standardise", "--dataset.held-out")
OF_DATA = {
    f"--{name}": f"--dataset.{name}"
    for name in ("key", "columns", "drop", "weights", "index", "na", "decimal", "header", "bounds")
}
ALIASES = SHORT | OF_DATA
ABOUT = {  # what people change of a preset, in a line each
    "--data FILE": "your table",
    "--data FOLDER": "your pictures",
    "--data-dir FOLDER": "where the data set is, or is downloaded to",
    "--key": "which array of an NPZ file",
    "--columns": "columns to learn; all others are left out",
    "--drop": "columns to leave out",
    "--weights": "column with the weight of each row",
    "--index": "column with the name of each row, which is not learned",
    "--na": "marks of missing values",
    "--decimal": "decimal mark, where the file does not show it",
    "--header": "whether the first line holds names",
    "--bounds": "limits that columns never reach, such as income=0, or auto",
    "--dataset.censor": "values at a limit: none, auto, or LOW,HIGH",
    "--dataset.coarse": "auto: columns of few different values are learned as cells",
    "--dataset.standardise": "whiten; or pixel (standardise each column), scalar, none",
    "--dataset.held-out": "share of rows to test on",
    "--dataset.n-points": "number of training points",
    "--dataset.size": "height and width of pictures, in pixels",
    "--dataset.crop": "part of pictures to use",
    "--dataset.grey": "pictures in grey",
    "--dataset.subset": "number of pictures to use",
    "--n-hidden": "number of hidden units",
    "--updates": "number of updates",
    "--lr": "learning rate",
    "--batch-size": "rows of an update",
    "--sampler": "sampler of the model's chains",
    "--seed": "seed of every random number",
    "--out": "folder of the run",
    "--dynamics": "equations as printed, or as a published program ran them",
    "--scale": "share of the paper's arithmetic",
}
HELP_ALL = "--help-all"  # explains all options, where --help explains those that people change
USAGE = """\
usage: grbm train PRESET [options]
       grbm train FILE [options]       a table, such as x.csv or x.npy
       grbm train FOLDER [options]     pictures
       grbm train --config RUN/config.json [options]"""


def train(args: list[str]) -> None:
    """`grbm train`: learn a data set."""
    given, args = _taken(args, config={"default": ""})
    written: str = given.config
    if not written and (not args or args[0] in ("-h", "--help")):
        width = max(map(len, PRESETS))
        print(USAGE)
        print("\nPresets (grbm train PRESET --help shows what people change):")
        print("\n".join(f"  {name:<{width}}  {preset.summary}" for name, preset in PRESETS.items()))
        return
    name, preset, rest = _of_file(Path(written), args) if written else _of_preset(args)
    defaults = TrainOptions(**{f.name: getattr(preset.config, f.name) for f in fields(RunConfig)})
    if {"-h", "--help"} & set(rest):
        print(f"usage: grbm train {name} [options]\n\n{preset.summary}\n\n{_first(name, preset.config)}")
        return
    rest = ["--help" if word == HELP_ALL else word for word in rest]
    options = parse(TrainOptions, rest, f"grbm train {name}", ALIASES, default=defaults, description=preset.summary)
    config = RunConfig(**{f.name: getattr(options, f.name) for f in fields(RunConfig)})
    config = _settle(config, preset.config)
    if config.preset in EXPERIMENTS:
        config = changed_by_hand(preset.config, config)
    source = ["--config", written] if written else []
    config = replace(config, command=shlex.join(["grbm", "train", *source, *args]))
    if text := describe(config):
        print(plain(text))
    is_named = config.data is not None and not written and config.data == Path(args[0])  # in place of a preset
    named = config.data.name.split(".")[0] if config.data is not None and is_named else config.preset
    folder = options.out or Path("runs") / (named or "run")
    config.check()
    if config.data is not None and not config.data.exists():
        raise UserError(f"{config.data} is not there; give --data the path of your data.")
    asked = None if written or name != "array" else {name: config.settings()[name] for name in _given(config, rest)}
    _run(config, folder, asked=asked, overwrite=options.overwrite, resume=options.resume, figures=options.figures)


def _of_preset(args: list[str]) -> tuple[str, Preset, list[str]]:
    """The preset that is named first, as its dynamics and scale shape it, and the other arguments."""
    name, rest = args[0], list(args[1:])
    if name == SIGN:
        raise UserError(
            "Other commands read training data again, so standard input (-) cannot hold them: write them to a file, as "
            "in ... > rows.csv, and then grbm train rows.csv"
        )
    if name.startswith("-"):
        raise UserError(f"The preset goes first: grbm train PRESET {name} ... Choose one of {', '.join(PRESETS)}.")
    if name not in PRESETS:
        if not Path(name).exists():
            if Path(name).name != name or Path(name).suffix:
                raise UserError(f"There is no {name}; check the path.")
            choose = f"Choose one of {', '.join(PRESETS)}, or give a file with a table, or a folder of pictures."
            raise UserError(f"There is no preset {name!r}{close(name, list(PRESETS))} {choose}")
        name, rest = _kind_of(Path(name)), ["--data", name, *rest]
    preset = PRESETS[name]
    if name in EXPERIMENTS:
        how = {"choices": get_args(Dynamics), "default": "paper"}
        shape, rest = _taken(rest, dynamics=how, scale={"type": float, "default": 1.0})
        preset = preset._replace(config=configure(name, shape.dynamics, shape.scale))
    return name, preset, rest


def _kind_of(path: Path) -> str:
    """The preset that learns a file or folder. Raises UserError for what none does."""
    if (path / "config.json").is_file():
        raise UserError(f"{path} is a run, which goes on with: grbm resume {shlex.quote(str(path))}")
    if is_arrow(path) or table_kind(path) or path.suffix in (".npy", ".npz"):
        return "array"
    if holds_pictures(path):
        return "images"
    raise UserError(f"{path} {as_array(path)}" if path.is_file() else f"{path} is a folder without pictures.")


def _of_file(path: Path, args: list[str]) -> tuple[str, Preset, list[str]]:
    """A run's own configuration, and the arguments that change it."""
    from grbm.runs.folder import refuse_links

    if path.is_dir():
        refuse_links(path)
        path = path / "config.json"
    if not path.is_file():
        raise UserError(f"{path} is not a file; give --config a run, or its config.json.")
    if args and not args[0].startswith("-"):
        raise UserError(f"Give a preset or --config, not both: {path} has all settings of {args[0]!r} or its own.")
    return f"--config {path}", Preset(f"The settings of {path}", RunConfig.read(path)), args


def _first(name: str, config: RunConfig) -> str:
    """Settings of this preset that people change, with their defaults, in a line each."""
    kind = config.dataset.name
    data = {
        "array": ["--data FILE", *OF_DATA, *ONLY_OF_TABLES],
        "images": ["--data FOLDER", "--dataset.size", "--dataset.crop", "--dataset.grey", "--dataset.held-out"],
        "celeba": ["--data FILE", "--data-dir FOLDER", "--dataset.size", "--dataset.subset"],
        "mnist": ["--data-dir FOLDER"],
        "fashion-mnist": ["--data-dir FOLDER"],
        "digits": ["--dataset.held-out"],
    }.get(kind, ["--dataset.n-points"])
    values = {f"--{name.replace('_', '-')}": value for name, value in config.settings().items()}
    values |= {"--out": f"runs/{name}"}
    names = [*data, *SHORT, "--seed", "--out"]
    if name in EXPERIMENTS:
        names = ["--dynamics", "--scale", *names]
    shown = {flag: values.get(ALIASES.get(flag.split()[0], flag.split()[0])) for flag in names}
    own = {flag: x for flag, x in values.items() if flag.startswith("--sampler.") and flag != "--sampler.name"}
    shown |= {flag: x for flag, x in own.items() if x is not None}
    rows = [(f"  {flag}", "" if x in (None, "", ()) else str(x), ABOUT.get(flag, "")) for flag, x in shown.items()]
    table = aligned([("  option", "default", ""), *rows])
    return "\n".join([*table, "", f"All options: grbm train {name} {HELP_ALL}"])


def _given(config: RunConfig, args: list[str]) -> tuple[str, ...]:
    """The settings that flags among ``args`` name."""
    flags = {word.partition("=")[0].replace("_", "-") for word in args}
    flags |= {ALIASES[flag] for flag in flags & ALIASES.keys()}
    names: dict[str, str] = {}
    for name in config.settings():
        group, dot, last = name.replace("_", "-").rpartition(".")
        names |= {f"--{group}{dot}{last}": name, f"--{group}{dot}no-{last}": name}
    return tuple(sorted({names[flag] for flag in flags & names.keys()}))


def _taken(args: list[str], **flags: dict[str, Any]) -> tuple[Namespace, list[str]]:
    """The values of flags that shape the preset itself, and the arguments without them."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, how in flags.items():
        parser.add_argument(f"--{name}", **how)
    try:
        return parser.parse_known_args(args)
    except ArgumentError as error:
        raise UserError(f"{error.argument_name}: {error.message}.") from error


def resume(options: ResumeOptions) -> None:
    """`grbm resume`: go on where a run was stopped or killed."""
    from grbm import runs

    config = options.moved.of(runs.read_config(options.run))
    config = replace(config, device=options.device or config.device)
    _run(config, options.run, resume=True, figures=options.figures)


def _run(config: RunConfig, folder: Path, *, figures: bool, **how: Any) -> None:
    """Train as `grbm.runs.training.train` does, alone or as one of ``torchrun``'s processes, and draw."""
    from grbm import runs
    from grbm.core import distributed
    from grbm.runs.progress import ProgressBar
    from grbm.runs.training import train as learn

    group, device = distributed.join(config.device)
    try:
        with ProgressBar(is_leader=group.is_leader) as progress:
            on_update = progress.update if group.is_leader else lambda update, record: None
            learn(config, folder, group=group, device=device, on_start=progress.start, on_update=on_update, **how)
    except RuntimeError as error:
        if not distributed.lost(error):
            raise
        raise UserError(
            f"Another process of this job ended; read its message, then go on with: grbm resume {folder}"
        ) from error
    finally:
        distributed.leave()
    if not group.is_leader:
        return
    if progress.task is None:
        print(f"{folder} was finished already; nothing was done. To draw it again: grbm figures {folder}")
        return
    print(f"Trained in {progress.seconds:.0f} s; the run is in {folder}")
    if figures:
        from grbm.report.figures import draw
        from grbm.report.page import report
        from grbm.report.words import measured, of_held_out

        print("Drawing figures and the page ...", flush=True)
        run = runs.read(folder)
        run = run._replace(config=Moved(config.data_dir, config.data, config.dataset.key).of(run.config))
        dataset = run.load_data()
        page = report(run, dataset=dataset)
        for path in [*draw(run, dataset=dataset), page]:
            print(f"  {path}")
        if lines := list(of_held_out(measured(run, runs.EVALUATION))):
            print("\n".join(lines))
            print(f"Next: open {page}")
            return
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
