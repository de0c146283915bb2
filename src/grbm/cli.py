"""The command line: parse, call, print. No mathematics here."""

import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import tyro

from grbm.config import RunConfig, SamplingConfig
from grbm.errors import DivergenceError, StoppedError, UserError
from grbm.options import (
    DoctorOptions,
    EvaluateOptions,
    FiguresOptions,
    MixingOptions,
    ReproduceOptions,
    ResumeOptions,
    SampleOptions,
    TrainOptions,
    Which,
)
from grbm.presets import PRESETS

T = TypeVar("T")

USAGE = """\
grbm: Gaussian-Bernoulli restricted Boltzmann machines

  grbm train PRESET      learn a data set; writes a run folder with weights, metrics and figures
  grbm resume RUN        go on where a run was stopped or killed
  grbm sample RUN        draw samples from noise, as numbers and as a picture
  grbm evaluate RUN      likelihoods, reconstruction, free energies; for mixtures exact scores
  grbm mixing RUN        do its chains mix? R-hat, effective sample size, swap rates
  grbm doctor RUN        what is wrong with a run, or fine, and what to change
  grbm figures RUN       draw the run's figures again
  grbm reproduce fig1    the paper's Figure 1: five samplers on two mixtures

Start with `grbm train digits` (half a minute at most). Every command explains itself with --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 (a run diverged), 2 (bad input), 130 or 143 (stopped by a signal)."""
    args = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": _train,
        "resume": _resume,
        "sample": _sample,
        "evaluate": _evaluate,
        "mixing": _mixing,
        "doctor": _doctor,
        "figures": _figures,
        "reproduce": _reproduce,
    }
    if args[:1] == ["--version"]:
        from importlib.metadata import version

        print(f"grbm {version('grbm')}")
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


def _parse(kind: type[T], args: list[str], prog: str, **kwargs: Any) -> T:
    return tyro.cli(kind, args=args, prog=prog, **kwargs)


def _train(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        width = max(map(len, PRESETS))
        print("usage: grbm train PRESET [options]\n\nPresets (grbm train PRESET --help shows what can be changed):")
        print("\n".join(f"  {name:<{width}}  {preset.summary}" for name, preset in PRESETS.items()))
        return
    name, rest = args[0], args[1:]
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    preset = PRESETS[name].config
    defaults = TrainOptions(**{f.name: getattr(preset, f.name) for f in fields(RunConfig)})
    options = _parse(TrainOptions, rest, f"grbm train {name}", default=defaults, description=PRESETS[name].summary)
    config = _settle(RunConfig(**{f.name: getattr(options, f.name) for f in fields(RunConfig)}), preset)
    folder = options.out or Path("runs") / name
    _run(config, folder, overwrite=options.overwrite, resume=options.resume, figures=options.figures)


def _resume(args: list[str]) -> None:
    from grbm import runs

    options = _parse(ResumeOptions, args, "grbm resume")
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

        for path in draw(runs.read(folder)):
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


def _sample(args: list[str]) -> None:
    import numpy as np
    from matplotlib.figure import Figure

    from grbm import files, plots, runs
    from grbm.config import SAMPLERS, SamplerConfig
    from grbm.data.mixtures import MIXTURES
    from grbm.generate import generate

    options = _parse(SampleOptions, args, "grbm sample")
    for name, number in (("--n", options.n), ("--steps", options.steps)):
        if number is not None and number < 1:
            raise UserError(f"{name} must be at least 1, got {number}.")
    if options.sampler is not None and options.sampler not in SAMPLERS:
        raise UserError(f"There is no sampler {options.sampler!r}; choose one of {', '.join(SAMPLERS)}.")
    run = _read(options.run, None, None, options.weights)
    own = run.config.sampling
    sampling = SamplingConfig(
        sampler=own.sampler if options.sampler in (None, own.sampler.name) else SamplerConfig(options.sampler),  # type: ignore[arg-type]
        n_steps=options.steps or own.n_steps,
        mean=own.mean if options.mean is None else options.mean,
    )
    path = options.run / runs.SAMPLES / "samples.npy"
    if path.exists() and not options.overwrite:
        raise UserError(f"{path} already exists; add --overwrite to replace it.")
    drawn = generate(run, options.n, sampling=sampling, seed=options.seed)
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        kind = np.float64 if run.config.dataset.name == "array" else np.float32  # an array keeps all its digits
        np.save(file, drawn.numpy().astype(kind), allow_pickle=False)
    what = "conditional means of the last states; --mean False for the states" if sampling.mean else "states"
    print(f"{options.n} samples ({sampling.sampler.name}, {sampling.n_steps} steps from noise; {what}): {path}")
    name = run.config.dataset.name
    if run.image_shape is not None:
        title = f"{'Conditional means' if sampling.mean else 'Samples'} after {sampling.n_steps} steps from noise"
        figure = plots.image_grid(drawn[:256], run.image_shape, title)
    elif run.model.n_visible == 2:
        figure = Figure(figsize=(4, 4.2), layout="constrained")
        limits = None if name in MIXTURES else plots.limits_of(drawn)
        plots.sample_panel(figure.subplots(), drawn, MIXTURES.get(name), "samples from noise", limits)
    else:
        return
    with files.replacing(path.with_suffix(".png")) as temporary:
        figure.savefig(temporary, dpi=150)
    print(f"  {path.with_suffix('.png')}")


def _evaluate(args: list[str]) -> None:
    from grbm import files, runs
    from grbm.evaluate.report import evaluate

    options = _parse(EvaluateOptions, args, "grbm evaluate")
    for name, number in (("--samples", options.samples), ("--ais-steps", options.ais_steps)):
        if number < 1:
            raise UserError(f"{name} must be at least 1, got {number}.")
    if options.ais_chains < 2:
        raise UserError(f"--ais-chains must be at least 2, got {options.ais_chains}.")
    run = _read(options.run, options.data_dir, options.data, options.weights)
    scores = evaluate(
        run,
        n_samples=options.samples,
        seed=options.seed,
        whole=options.log_likelihood,
        ais_steps=options.ais_steps,
        ais_chains=options.ais_chains,
    )
    files.write_text(options.run / runs.EVALUATION, json.dumps(scores, indent=2) + "\n")
    width = max(map(len, scores))
    for name, score in scores.items():
        shown = ", ".join(f"{x:.3f}" for x in score) if isinstance(score, list) else score
        print(f"  {name:<{width}}  {f'{shown:.4f}' if isinstance(shown, float) else shown}")
    print(f"Written to {options.run / runs.EVALUATION}.")
    print("Nats per sample; log-likelihoods are those of the data in their own units.")
    if options.log_likelihood:
        print("\n".join(_likelihoods(scores)))


def _likelihoods(scores: dict[str, Any]) -> Iterator[str]:
    """The log-likelihoods among ``scores`` as a small table, and what they mean."""
    bits = "bits_per_dimension_train" in scores
    yield "\nLog-likelihood, nats per sample" + (
        "; dequantised, nats per sample and bits per dimension:" if bits else ":"
    )
    for name, label in (("train", "training"), ("test", "held out")):
        if f"rows_{name}" not in scores:
            continue
        kinds = ("log_likelihood", *(("dequantised", "bits_per_dimension") if bits else ()))
        columns = [f"{scores[f'{kind}_{name}']:.4g} ± {scores[f'{kind}_{name}_error']:.2g}" for kind in kinds]
        yield f"  {label:<9}{scores[f'rows_{name}']:>8,} rows   " + "   ".join(columns)
    yield f"log Z = {scores['log_z']:.3f} ± {scores['log_z_error']:.2g} ({scores['log_z_method']})"
    yield from [scores["log_z_verdict"]] if "log_z_verdict" in scores else []
    text = "Errors are standard errors, of the rows and of log Z together. The log-determinant of the standardisation "
    text += "is in it: log p(x) = -F(z) - log Z - sum log scale."
    if bits:
        text += (
            " Pixels are whole numbers, at which a density can be as high as it likes; dequantised, each has uniform "
        )
        text += "noise of one level added, and minus the mean is at least the bits that the pixels themselves cost."
    yield textwrap.fill(text, 100)


def _mixing(args: list[str]) -> None:
    from grbm import files, plots, runs
    from grbm.config import SamplerConfig
    from grbm.data.loading import load_for
    from grbm.data.rows import spread
    from grbm.evaluate import mixing
    from grbm.generate import on_device, tuned_sampler

    options = _parse(MixingOptions, args, "grbm mixing")
    run = _read(options.run, options.data_dir, options.data, options.weights)
    own = run.config.sampling.sampler
    named = own if options.sampler in (None, own.name) else SamplerConfig(options.sampler)  # type: ignore[arg-type]
    model = on_device(run)
    sampler = tuned_sampler(run, named, model)
    dataset = load_for(run.config, run.model.n_visible)
    rows = run.standardizer(dataset.train[spread(len(dataset.train), 1000)])
    try:
        trace = mixing.record(
            model,
            sampler,
            rows,
            n_chains=options.chains,
            n_draws=options.draws,
            every=options.every,
            burn_in=options.burn_in,
            seed=options.seed,
        )
    except ValueError as error:
        raise UserError(f"The chains were refused: {error}") from error
    found = mixing.diagnose(trace)
    print(f"{options.chains} chains of {named.name}, {trace.n_from_data} of them from data, the others from noise;")
    print(f"{options.draws} states of each, every {options.every} steps after {options.burn_in}.\n")
    for name, text in found.lines():
        print(f"  {name:<28}{text}")
    print(f"\n{textwrap.fill(found.verdict, 100)}")
    files.write_text(options.run / runs.MIXING, json.dumps(found.scores() | {"sampler": named.name}, indent=2) + "\n")
    with files.replacing(options.run / runs.FIGURES / "mixing.png") as temporary:
        plots.mixing(trace, found).savefig(temporary, dpi=150)
    print(f"  {options.run / runs.MIXING}\n  {options.run / runs.FIGURES / 'mixing.png'}")
    if options.netcdf:
        with files.replacing(options.run / runs.TRACE) as temporary:
            mixing.to_inference_data(trace).to_netcdf(str(temporary))
        print(f"  {options.run / runs.TRACE}")


def _doctor(args: list[str]) -> None:
    from grbm.data.loading import load_for
    from grbm.evaluate.doctor import diagnose

    options = _parse(DoctorOptions, args, "grbm doctor")
    run = _read(options.run, options.data_dir, options.data, options.weights)
    try:
        dataset = load_for(run.config, run.model.n_visible)
    except UserError as error:
        print(f"Note: {error}", file=sys.stderr)
        dataset = None
    findings = diagnose(run, dataset, seed=options.seed)
    for level, about, text in findings:
        print(textwrap.fill(f"{level:<6}{about}: {text}", 100, subsequent_indent=" " * 6))
    wrong = sum(finding.level == "wrong" for finding in findings)
    print("Nothing is wrong." if not wrong else f"Wrong: {wrong} of {len(findings)} things looked at.")


def _figures(args: list[str]) -> None:
    from grbm.drawing import draw

    options = _parse(FiguresOptions, args, "grbm figures")
    for path in draw(_read(options.run, options.data_dir, options.data), seed=options.seed):
        print(f"  {path}")


def _read(folder: Path, data_dir: Path | None, data: Path | None, which: Which = "model") -> Any:
    """A run, with its data where they are now; says so if its training ended early."""
    from grbm import runs

    run = runs.read(folder, which, lambda text: print(f"Note: {text}", file=sys.stderr))
    if run.status:
        print(f"Note: {run.status}", file=sys.stderr)
    config = replace(run.config, data_dir=data_dir or run.config.data_dir, data=data or run.config.data)
    return run._replace(config=config)


def _reproduce(args: list[str]) -> None:
    from grbm.figure1 import reproduce

    options = _parse(ReproduceOptions, args, "grbm reproduce")
    if options.jobs < 1:
        raise UserError(f"--jobs must be at least 1, got {options.jobs}.")
    out = options.out or Path("runs") / f"fig1-{options.budget}"
    print(reproduce(out, budget=options.budget, jobs_at_once=options.jobs, seed=options.seed))


if __name__ == "__main__":
    sys.exit(main())
