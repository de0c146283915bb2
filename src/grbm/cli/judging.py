"""The commands that show a run and say how good it is: scores, the doctor, figures, pages. Parse, call, print."""

import json
import sys
import textwrap
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grbm.cli.common import note, note_units, read_run, refuse_out, require
from grbm.cli.options import (
    CompareOptions,
    DoctorOptions,
    EvaluateOptions,
    FiguresOptions,
    ListOptions,
    MixingOptions,
    ReportOptions,
)
from grbm.cli.piped import file_of
from grbm.core.errors import UserError

if TYPE_CHECKING:
    from grbm.data.loading import Dataset
    from grbm.report.image_scores import ScoreTable
    from grbm.runs import Run

SOMETHING_WRONG = 3  # exit code of the doctor


def evaluate(options: EvaluateOptions) -> None:
    """`grbm evaluate`: scores of a run, printed and written beside it."""
    require("--samples", options.samples, 1)
    require("--ais-steps", options.ais_steps, 1)
    require("--ais-chains", options.ais_chains, 2)
    if options.fid:
        require("--fid-samples", options.fid_samples, 100)
    from grbm import runs
    from grbm.core import files
    from grbm.evaluate.exact import is_enumerable
    from grbm.report import words
    from grbm.report.scores import dearer, evaluate, score_rows
    from grbm.runs.encoding import rows_to_encode, strangeness, weights_of

    if options.moved.data is not None:
        options = replace(options, moved=replace(options.moved, data=file_of(options.moved.data)))
    run = read_run(options.run, options.weights, options.moved, quiet=options.json)
    sizes = {"ais_steps": options.ais_steps, "ais_chains": options.ais_chains, "seed": options.seed}
    found: dict[str, Any] = {}
    lines: list[str] = []
    own = None
    try:
        dataset = run.load_data()
    except UserError:  # other rows than the run's, or none that one could train on, such as a single picture
        moved = options.moved
        if moved.data is None or options.fid:
            raise
        rows, _ = rows_to_encode(run, str(moved.data), note=note)
        weights = weights_of(run, moved.data, len(rows), note)
        note_units(strangeness(run, rows))
        with suppress(UserError):
            its = replace(moved, data=None, key=None)
            own = read_run(options.run, options.weights, its, quiet=True).load_data()
        found = score_rows(run, rows, str(moved.data), own, weights=weights, **sizes)
        print(json.dumps(found, indent=2) if options.json else "\n".join(words.of_rows(found)))
        return
    if options.fid:
        table = _fid(run, dataset, options)
        found["images"] = table._asdict()
        lines += [*table.lines(), f"Written to {options.run / runs.FID}."]
    if not options.fid or options.log_likelihood:
        if not is_enumerable(run.model) and run.model.n_visible > 2 and run.frame.reference is None:
            what = f"{options.ais_chains:,} chains over {options.ais_steps:,} temperatures, both ways"
            print(f"  log Z by annealing: {what} ...", file=sys.stderr, flush=True)
        scores = evaluate(run, dataset=dataset, n_samples=options.samples, whole=options.log_likelihood, **sizes)
        if not options.log_likelihood:  # what took longer is not thrown away
            kept = dearer(run)
            scores = {name: x for name, x in scores.items() if not (kept and name.startswith("log_z"))} | kept
        files.write_text(options.run / runs.EVALUATION, json.dumps(scores, indent=2) + "\n")
        found |= scores
        lines += words.score_table(scores)
        lines.append(f"\nWritten to {options.run / runs.EVALUATION}; grbm report {options.run} puts it on the page.")
        lines += words.likelihoods(scores) if options.log_likelihood else []
    print(json.dumps(found, indent=2) if options.json else "\n".join(lines))


def _fid(run: "Run", dataset: "Dataset", options: EvaluateOptions) -> "ScoreTable":
    """The table of image distances; the network is optional where there is a classifier of one's own."""
    from grbm.core.devices import pick_device
    from grbm.evaluate.features import inception
    from grbm.report.image_scores import score_images
    from grbm.runs.config import showing

    if run.image_shape is None:
        raise UserError(f"{options.run} is not a run on images, which --fid needs.")
    if options.fid_mean is not None:
        run = run._replace(config=showing(run.config, options.fid_mean))
    judge = inception(options.fid_weights, run.config.dataset.name, pick_device("auto"), note)
    return score_images(
        run,
        dataset,
        judge,
        n=options.fid_samples,
        with_references=options.fid_references,
        seed=options.seed,
        say=lambda text: print(f"  scoring {text} ...", file=sys.stderr, flush=True),
    )


def mixing(options: MixingOptions) -> None:
    """`grbm mixing`: whether a run's chains mix."""
    counts = {"n_chains": options.chains, "n_draws": options.draws, "every": options.every, "burn_in": options.burn_in}
    from grbm import runs
    from grbm.core import files
    from grbm.evaluate import mixing
    from grbm.fitting.recipe import SamplerConfig
    from grbm.report import plots
    from grbm.runs.sampling import on_device, tuned_sampler

    for name, least in mixing.FEWEST.items():
        require(f"--{name.removeprefix('n_').replace('_', '-')}", counts[name], least)
    run = read_run(options.run, options.weights, options.moved, quiet=options.json)
    sampling = run.config.sampling.sampler
    own = run.config.sampler if sampling.name == "annealed" else sampling  # an annealed path is no chain
    named = own if options.sampler in (None, own.name) else SamplerConfig(options.sampler)  # type: ignore[arg-type]
    model = on_device(run).model
    sampler = tuned_sampler(run, named, model)
    dataset = run.load_data()
    rows = run.fitted.units(dataset.some("train", 1000))
    try:
        trace = mixing.record(model, sampler, rows, **counts, seed=options.seed)
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(f"There is no diagnosis: {error}") from error
    found = mixing.diagnose(trace)
    settings: dict[str, Any] = {"sampler": named.name, "weights": options.weights, "seed": options.seed}
    settings |= {"chains": options.chains, "model": runs.model_digest(run.model), "draws": options.draws}
    scores = found.scores() | settings | {"every": options.every, "burn_in": options.burn_in}
    files.write_text(options.run / runs.MIXING, json.dumps(scores, indent=2) + "\n")
    picture = plots.save(plots.mixing(trace, found), options.run / runs.FIGURES / "mixing.png")
    written = [options.run / runs.MIXING, picture]
    if options.netcdf:
        with files.replacing(options.run / runs.TRACE) as temporary:
            mixing.to_inference_data(trace).to_netcdf(str(temporary))
        written.append(options.run / runs.TRACE)
    if options.json:
        print(json.dumps(scores, indent=2))
        return
    print(f"{options.chains} chains of {named.name}, {trace.n_from_data} of them from data, the others from noise;")
    print(f"{options.draws} states of each, every {options.every} steps after {options.burn_in}.\n")
    for name, text in found.lines():
        print(f"  {name:<28}{text}")
    print(f"\n{textwrap.fill(found.verdict, 100)}")
    print("\n".join(f"  {path}" for path in written))


def doctor(options: DoctorOptions) -> int:
    """`grbm doctor`: what is wrong with a run, or fine; the exit code says whether anything is wrong."""
    if (options.run is None) != options.machine:
        raise UserError("grbm doctor takes a run (grbm doctor RUN), or --machine and no run.")
    if options.run is None:
        from grbm.report import machine

        here = machine.look()
        lines = [textwrap.fill(line, 100, subsequent_indent="  ") for line in machine.lines(here)]
        content: dict[str, Any] = {**here._asdict(), "gpus": [gpu._asdict() for gpu in here.gpus]}
        print(json.dumps(content, indent=2) if options.json else "\n".join(lines))
        return 0
    from grbm.report.doctor import diagnose

    run = read_run(options.run, options.weights, options.moved, quiet=options.json)
    dataset = None
    try:
        dataset = run.load_data()
    except UserError as error:
        note(str(error))
    findings = diagnose(run, dataset, seed=options.seed)
    wrong = sum(finding.level == "wrong" for finding in findings)
    said = (f"{level:<6}{about}: {text}" for level, about, text in findings)
    lines = [textwrap.fill(text, 100, subsequent_indent=" " * 6) for text in said]
    right = "Nothing is wrong." if all(x.level == "fine" for x in findings) else "Nothing is wrong, but read the notes."
    lines.append(f"Wrong: {wrong} of {len(findings)} things looked at." if wrong else right)
    content = {"wrong": wrong, "findings": [finding._asdict() for finding in findings]}
    print(json.dumps(content, indent=2) if options.json else "\n".join(lines))
    return SOMETHING_WRONG if wrong else 0


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
    from grbm.core.streams import aligned
    from grbm.report.page import compare
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
    lines = table(listed) if listed else [f"There is no run in {options.folder}; grbm train PRESET makes one."]
    print(json.dumps([run._asdict() for run in listed], indent=2) if options.json else "\n".join(lines))
