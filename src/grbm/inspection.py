"""The commands that read a run: parse, call, print. No mathematics here."""

import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import tyro

from grbm.config import SamplingConfig
from grbm.errors import UserError
from grbm.options import (
    CompareOptions,
    DoctorOptions,
    EvaluateOptions,
    FiguresOptions,
    MixingOptions,
    ReportOptions,
    SampleOptions,
    Which,
)

T = TypeVar("T")


def parse(kind: type[T], args: list[str], prog: str, **kwargs: Any) -> T:
    """The options of a command; explains them with --help."""
    return tyro.cli(kind, args=args, prog=prog, **kwargs)


def sample(args: list[str]) -> None:
    import numpy as np
    from matplotlib.figure import Figure

    from grbm import files, plots, runs
    from grbm.config import SAMPLERS, SamplerConfig
    from grbm.data.mixtures import MIXTURES
    from grbm.generate import generate

    options = parse(SampleOptions, args, "grbm sample")
    for name, number in (("--n", options.n), ("--steps", options.steps)):
        if number is not None and number < 1:
            raise UserError(f"{name} must be at least 1, got {number}.")
    if options.sampler is not None and options.sampler not in SAMPLERS:
        raise UserError(f"There is no sampler {options.sampler!r}; choose one of {', '.join(SAMPLERS)}.")
    run = read_run(options.run, None, None, options.weights)
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


def evaluate(args: list[str]) -> None:
    from grbm import files, runs
    from grbm.evaluate.report import evaluate

    options = parse(EvaluateOptions, args, "grbm evaluate")
    for name, number in (("--samples", options.samples), ("--ais-steps", options.ais_steps)):
        if number < 1:
            raise UserError(f"{name} must be at least 1, got {number}.")
    if options.ais_chains < 2:
        raise UserError(f"--ais-chains must be at least 2, got {options.ais_chains}.")
    run = read_run(options.run, options.data_dir, options.data, options.weights)
    if options.fid:
        _fid(run, options)
        if not options.log_likelihood:
            return
    scores = evaluate(
        run,
        n_samples=options.samples,
        seed=options.seed,
        whole=options.log_likelihood,
        ais_steps=options.ais_steps,
        ais_chains=options.ais_chains,
    )
    scores["model"] = runs.model_digest(run.model)
    if not options.log_likelihood:
        scores |= _dearer(options.run / runs.EVALUATION, scores["model"])
    files.write_text(options.run / runs.EVALUATION, json.dumps(scores, indent=2) + "\n")
    width = max(map(len, scores))
    for name, score in scores.items():
        shown = ", ".join(f"{x:.3f}" for x in score) if isinstance(score, list) else score
        print(f"  {name:<{width}}  {f'{shown:.4f}' if isinstance(shown, float) else shown}")
    print(f"Written to {options.run / runs.EVALUATION}.")
    print("Nats per sample; log-likelihoods are those of the data in their own units.")
    if options.log_likelihood:
        print("\n".join(_likelihoods(scores)))


def _dearer(path: Path, model: str) -> dict[str, Any]:
    """What ``--log-likelihood`` found of the same weights before: it took longer, and is not thrown away."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        known = before.get("model") == model and "rows_train" in before
    except (OSError, ValueError, AttributeError):
        return {}
    kinds = ("log_likelihood", "dequantised", "bits_per_dimension", "rows_", "log_z")
    return {name: x for name, x in before.items() if known and name.startswith(kinds)}


def _fid(run: Any, options: EvaluateOptions) -> None:
    """The table of image distances; the network is optional where there is a classifier of one's own."""
    from grbm import runs
    from grbm.config import showing
    from grbm.data.loading import load_for
    from grbm.evaluate.features import inception
    from grbm.evaluate.images import score_images

    if run.image_shape is None:
        raise UserError(f"{options.run} is not a run on images, which --fid needs.")
    if options.fid_mean is not None:
        run = run._replace(config=showing(run.config, options.fid_mean))
    if options.fid_samples < 100:
        raise UserError(f"--fid-samples must be at least 100, got {options.fid_samples}.")
    weights, device = options.fid_weights, runs.pick_device("auto")
    judge = inception(weights, run.config.dataset.name, device, lambda text: print(f"Note: {text}", file=sys.stderr))
    table = score_images(
        run,
        load_for(run.config, run.model.n_visible),
        judge,
        n=options.fid_samples,
        with_references=options.fid_references,
        seed=options.seed,
        say=lambda text: print(f"  scoring {text} ...", file=sys.stderr, flush=True),
    )
    print("\n".join(table.lines()))
    print(f"Written to {options.run / runs.FID}.")


def _likelihoods(scores: dict[str, Any]) -> Iterator[str]:
    """The log-likelihoods among ``scores`` as a small table, and what they mean."""
    from grbm.evaluate.images import with_error

    bits = "bits_per_dimension_train" in scores
    yield "\nLog-likelihood, nats per sample" + (
        "; dequantised, nats per sample and bits per dimension:" if bits else ":"
    )
    for name, label in (("train", "training"), ("test", "held out")):
        if f"rows_{name}" not in scores:
            continue
        kinds = ("log_likelihood", *(("dequantised", "bits_per_dimension") if bits else ()))
        columns = [with_error(scores[f"{kind}_{name}"], scores[f"{kind}_{name}_error"]) for kind in kinds]
        yield f"  {label:<9}{scores[f'rows_{name}']:>8,} rows   " + "   ".join(columns)
    yield f"log Z = {scores['log_z']:.3f} ± {scores['log_z_error']:.2g} ({scores['log_z_method']})"
    verdict = scores.get("log_z_verdict", "")
    if verdict.startswith("Not"):
        verdict += " Do not use these likelihoods: raise --ais-steps or --ais-chains."
    yield from [verdict] if verdict else []
    text = "Errors are standard errors, of the rows and of log Z together. The log-determinant of the standardisation "
    text += "is in it: log p(x) = -F(z) - log Z - sum log scale."
    if bits:
        text += (
            " Pixels are whole numbers, at which a density can be as high as it likes; dequantised, each has uniform "
        )
        text += "noise of one level added, and minus the mean is at least the bits that the pixels themselves cost."
    yield textwrap.fill(text, 100)


def mixing(args: list[str]) -> None:
    from grbm import files, plots, runs
    from grbm.config import SamplerConfig
    from grbm.data.loading import load_for
    from grbm.data.rows import spread
    from grbm.evaluate import mixing
    from grbm.generate import on_device, tuned_sampler

    options = parse(MixingOptions, args, "grbm mixing")
    run = read_run(options.run, options.data_dir, options.data, options.weights)
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
        flags = {"n_chains": "--chains", "n_draws": "--draws", "every": "--every", "burn_in": "--burn-in"}
        first, _, rest = str(error).partition(" ")
        raise UserError(f"The chains were refused: {flags.get(first, first)} {rest}") from error
    found = mixing.diagnose(trace)
    settings = {"sampler": named.name, "weights": options.weights, "seed": options.seed, "chains": options.chains}
    settings |= {"model": runs.model_digest(run.model)}
    settings |= {"draws": options.draws, "every": options.every, "burn_in": options.burn_in}
    print(f"{options.chains} chains of {named.name}, {trace.n_from_data} of them from data, the others from noise;")
    print(f"{options.draws} states of each, every {options.every} steps after {options.burn_in}.\n")
    for name, text in found.lines():
        print(f"  {name:<28}{text}")
    print(f"\n{textwrap.fill(found.verdict, 100)}")
    files.write_text(options.run / runs.MIXING, json.dumps(found.scores() | settings, indent=2) + "\n")
    with files.replacing(options.run / runs.FIGURES / "mixing.png") as temporary:
        plots.mixing(trace, found).savefig(temporary, dpi=150)
    print(f"  {options.run / runs.MIXING}\n  {options.run / runs.FIGURES / 'mixing.png'}")
    if options.netcdf:
        with files.replacing(options.run / runs.TRACE) as temporary:
            mixing.to_inference_data(trace).to_netcdf(str(temporary))
        print(f"  {options.run / runs.TRACE}")


def doctor(args: list[str]) -> None:
    from grbm.data.loading import load_for
    from grbm.evaluate.doctor import diagnose

    options = parse(DoctorOptions, args, "grbm doctor")
    run = read_run(options.run, options.data_dir, options.data, options.weights)
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


def figures(args: list[str]) -> None:
    from grbm.drawing import draw

    options = parse(FiguresOptions, args, "grbm figures")
    for path in draw(read_run(options.run, options.data_dir, options.data), seed=options.seed):
        print(f"  {path}")


def report(args: list[str]) -> None:
    from grbm.page import report

    options = parse(ReportOptions, args, "grbm report")
    print(f"  {report(read_run(options.run, options.data_dir, options.data), seed=options.seed)}")


def compare(args: list[str]) -> None:
    from grbm.page import compare

    options = parse(CompareOptions, args, "grbm compare")
    if len(options.runs) < 2:
        raise UserError("grbm compare needs two runs or more; for one there is grbm report.")
    if options.out.exists() and not options.overwrite:
        raise UserError(f"{options.out} already exists; choose another with --out, or add --overwrite.")
    table = compare([read_run(folder, None, None) for folder in options.runs], options.out, seed=options.seed)
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    for row in table:
        print("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    print(f"  {options.out}")


def read_run(folder: Path, data_dir: Path | None, data: Path | None, which: Which = "model") -> Any:
    """A run, with its data where they are now; says so if its training ended early."""
    from grbm import runs

    run = runs.read(folder, which, lambda text: print(f"Note: {text}", file=sys.stderr))
    if run.status:
        print(f"Note: {run.status}", file=sys.stderr)
    if run.config.about:
        print(run.config.about)
    config = replace(run.config, data_dir=data_dir or run.config.data_dir, data=data or run.config.data)
    return run._replace(config=config)
