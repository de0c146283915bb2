"""The commands that say how good a run is: scores, mixing, and what the doctor finds. Parse, call, print."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from grbm import files, runs
from grbm.cli.common import note, parse, read_run, require
from grbm.cli.options import DoctorOptions, EvaluateOptions, MixingOptions
from grbm.errors import UserError


def evaluate(args: list[str]) -> None:
    """`grbm evaluate`: scores of a run, printed and written beside it."""
    from grbm.report import words
    from grbm.report.scores import evaluate

    options = parse(EvaluateOptions, args, "grbm evaluate")
    require("--samples", options.samples, 1)
    require("--ais-steps", options.ais_steps, 1)
    require("--ais-chains", options.ais_chains, 2)
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
        dearer = _dearer(options.run / runs.EVALUATION, scores["model"])
        scores = {name: x for name, x in scores.items() if not (dearer and name.startswith("log_z"))} | dearer
    files.write_text(options.run / runs.EVALUATION, json.dumps(scores, indent=2) + "\n")
    width = max(map(len, scores))
    for name, score in scores.items():
        shown = ", ".join(f"{x:.3f}" for x in score) if isinstance(score, list) else score
        print(f"  {name:<{width}}  {f'{shown:.4f}' if isinstance(shown, float) else shown}")
    print(f"Written to {options.run / runs.EVALUATION}.")
    print("Nats per sample; log-likelihoods are those of the data in their own units.")
    if options.log_likelihood:
        print("\n".join(words.likelihoods(scores)))


def _dearer(path: Path, model: str) -> dict[str, Any]:
    """What ``--log-likelihood`` found of the same weights before: it took longer, and is not thrown away."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        known = before.get("model") == model and "rows_train" in before
    except (OSError, ValueError, AttributeError):
        return {}
    kinds = ("log_likelihood", "dequantised", "bits_per_dimension", "rows_", "log_z")
    return {name: x for name, x in before.items() if known and name.startswith(kinds)}


def _fid(run: runs.Run, options: EvaluateOptions) -> None:
    """The table of image distances; the network is optional where there is a classifier of one's own."""
    from grbm.devices import pick_device
    from grbm.evaluate.features import inception
    from grbm.report.image_scores import score_images
    from grbm.runs.config import showing

    if run.image_shape is None:
        raise UserError(f"{options.run} is not a run on images, which --fid needs.")
    if options.fid_mean is not None:
        run = run._replace(config=showing(run.config, options.fid_mean))
    require("--fid-samples", options.fid_samples, 100)
    judge = inception(options.fid_weights, run.config.dataset.name, pick_device("auto"), note)
    table = score_images(
        run,
        run.load_data(),
        judge,
        n=options.fid_samples,
        with_references=options.fid_references,
        seed=options.seed,
        say=lambda text: print(f"  scoring {text} ...", file=sys.stderr, flush=True),
    )
    print("\n".join(table.lines()))
    print(f"Written to {options.run / runs.FID}.")


def mixing(args: list[str]) -> None:
    """`grbm mixing`: whether a run's chains mix."""
    from grbm.data.tables import spread
    from grbm.evaluate import mixing
    from grbm.report import plots
    from grbm.runs.config import SamplerConfig
    from grbm.runs.sampling import on_device, tuned_sampler

    options = parse(MixingOptions, args, "grbm mixing")
    counts = {"n_chains": options.chains, "n_draws": options.draws, "every": options.every, "burn_in": options.burn_in}
    for flag, name in (
        ("--chains", "n_chains"),
        ("--draws", "n_draws"),
        ("--every", "every"),
        ("--burn-in", "burn_in"),
    ):
        require(flag, counts[name], mixing.FEWEST[name])
    run = read_run(options.run, options.data_dir, options.data, options.weights)
    own = run.config.sampling.sampler
    named = own if options.sampler in (None, own.name) else SamplerConfig(options.sampler)  # type: ignore[arg-type]
    model = on_device(run)
    sampler = tuned_sampler(run, named, model)
    dataset = run.load_data()
    rows = run.standardizer(dataset.train[spread(len(dataset.train), 1000)])
    try:
        trace = mixing.record(model, sampler, rows, **counts, seed=options.seed)
    except ValueError as error:
        raise UserError(f"The chains were refused: {error}") from error
    found = mixing.diagnose(trace)
    settings: dict[str, Any] = {
        "sampler": named.name,
        "weights": options.weights,
        "seed": options.seed,
        "chains": options.chains,
    }
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
    """`grbm doctor`: what is wrong with a run, or fine."""
    from grbm.report.doctor import diagnose

    options = parse(DoctorOptions, args, "grbm doctor")
    run = read_run(options.run, options.data_dir, options.data, options.weights)
    try:
        dataset = run.load_data()
    except UserError as error:
        note(str(error))
        dataset = None
    findings = diagnose(run, dataset, seed=options.seed)
    for level, about, text in findings:
        print(textwrap.fill(f"{level:<6}{about}: {text}", 100, subsequent_indent=" " * 6))
    wrong = sum(finding.level == "wrong" for finding in findings)
    print("Nothing is wrong." if not wrong else f"Wrong: {wrong} of {len(findings)} things looked at.")
