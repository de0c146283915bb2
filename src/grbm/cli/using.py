"""The commands that use a run: samples, codes of data, gaps filled in, files for other programs. Parse, call, print."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from grbm.cli.common import note, note_units, read_run, refuse_out, require
from grbm.cli.names import close
from grbm.cli.options import EncodeOptions, ExportOptions, ImputeOptions, SampleOptions, ScoreOptions
from grbm.cli.piped import SIGN, file_of
from grbm.core.errors import UserError

DRAWS = 200  # of each row, for quantiles


def sample(options: SampleOptions) -> None:
    """`grbm sample`: draws from noise, as numbers and as a picture, or given some columns."""
    from grbm.fitting.recipe import SAMPLERS, SamplerConfig
    from grbm.runs.config import SamplingConfig

    require("--n", options.n, 1)
    require("--steps", options.steps, 1)
    if options.given is not None:
        _sample_given(options, options.given)
        return
    if options.sampler is not None and options.sampler not in SAMPLERS:
        hint = close(options.sampler, list(SAMPLERS))
        raise UserError(f"There is no sampler {options.sampler!r}{hint} Choose one of {', '.join(SAMPLERS)}.")
    import numpy as np
    from matplotlib.figure import Figure

    from grbm import runs
    from grbm.data.images import tile
    from grbm.data.mixtures import MIXTURES
    from grbm.data.named import write_table
    from grbm.report import plots, sheets
    from grbm.runs.sampling import generate

    run = read_run(options.run, options.weights)
    own = run.config.sampling
    sampling = SamplingConfig(
        sampler=own.sampler if options.sampler in (None, own.sampler.name) else SamplerConfig(options.sampler),  # type: ignore[arg-type]
        n_steps=options.steps or own.n_steps,
        mean=own.mean if options.mean is None else options.mean,
    )
    path = _samples_path(options, "samples.npy")
    drawn = generate(run, options.n, sampling=sampling, seed=options.seed)
    kind = np.float64 if run.config.dataset.name == "array" else np.float32  # an array keeps all its digits
    write_table(path, drawn.numpy().astype(kind), run.columns)
    runs.note_written(options.run, *([options.out] if options.out else []))
    what = "conditional means of the last states; --mean False for the states" if sampling.mean else "states"
    print(f"{options.n} samples ({sampling.sampler.name}, {sampling.n_steps} steps from noise; {what}): {path}")
    name = run.config.dataset.name
    if run.image_shape is not None:
        title = f"{'Conditional means' if sampling.mean else 'Samples'} after {sampling.n_steps} steps from noise"
        figure = sheets.whole_sheet(tile(drawn[:256], run.image_shape, 16), title)
    elif drawn.shape[1] == 2:
        figure = Figure(figsize=(4, 4.2), layout="constrained")
        limits = None if name in MIXTURES else plots.limits_of(drawn)
        plots.sample_panel(figure.subplots(), drawn, MIXTURES.get(name), "samples from noise", limits)
    else:
        return
    print(f"  {plots.save(figure, options.run / runs.SAMPLES / 'samples.png')}")


def _samples_path(options: SampleOptions, name: str) -> Path:
    """Return the file to write; raise UserError where it may not be."""
    from grbm import runs

    path = options.out or options.run / runs.SAMPLES / name
    require_written(path)
    refuse_out(options.overwrite, *([options.out] if options.out else []))
    if path.exists() and not options.overwrite:
        raise UserError(f"{path} already exists; add --overwrite to replace it.")
    return path


def _sample_given(options: SampleOptions, given: str) -> None:
    """Draw what rows lack, given what they have."""
    for name in ("sampler", "mean"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} goes with samples from noise, not with --given.")
    from grbm import runs
    from grbm.data.named import write_table
    from grbm.report import drawn
    from grbm.runs.encoding import strangeness
    from grbm.runs.given import draw_given, given_rows
    from grbm.samplers.conditional import Filling

    run = read_run(options.run, options.weights)
    rows = given_rows(run, str(file_of(Path(given))) if given == SIGN else given, note)
    path = _samples_path(options, "given.npy")
    note_units(strangeness(run, rows))
    draws = draw_given(run, rows, options.n, n_steps=options.steps or Filling().n_steps, seed=options.seed)
    write_table(path, draws.flatten(0, 1).numpy(), run.columns)
    runs.note_written(options.run, *([options.out] if options.out else []))
    print("\n".join(drawn.lines(rows, draws, run.columns)))
    each = "" if len(rows) == 1 else f" for each of {len(rows):,} rows, those of a row one after another"
    print(f"{options.n:,} draws{each}: {path}")


def encode(options: EncodeOptions) -> None:
    """`grbm encode`: binary codes of data."""

    from grbm import runs
    from grbm.core import files
    from grbm.runs.encoding import n_gappy, rows_to_encode, strangeness, write_codes, write_contrasts

    run = read_run(options.run, options.weights, options.moved)
    where = "standard input" if options.what == SIGN else options.what
    if options.what == SIGN:
        options = replace(options, what=str(file_of(Path(SIGN))))
    rows, numbers = rows_to_encode(run, options.what, note=note)
    form = ".packed" if options.packed else ".bits" if options.bits else ""
    path = options.out or options.run / runs.CODES / f"{Path(options.what).stem}{form}.npy"
    if path.suffix != ".npy":
        raise UserError(f"--out must end in .npy, the format that is written, got {path}.")
    beside, shares = path.with_suffix(".rows.npy"), path.with_suffix(".contrast.npy")
    written = [path, *([beside] if options.what in ("train", "test") else [])]
    written += [shares] if run.model.contrasts.n > 1 else []
    refuse_out(options.overwrite, *written)
    note_units(strangeness(run, rows))
    write_codes(run, rows, path, where, bits=options.bits, packed=options.packed, seed=options.seed)
    kind = "hidden bits, eight a byte" if options.packed else "hidden bits" if options.bits else "hidden probabilities"
    print(f"{len(rows):,} codes of {run.model.n_hidden} {kind}: {path}")
    if n := n_gappy(rows):
        print(f"  {n:,} of the rows have gaps: their codes are means over the missing values")
    if run.model.contrasts.n > 1:
        write_contrasts(run, rows, shares, where)
        scales = " ".join(f"{float(s):.3g}" for s in run.model.contrasts.log_scales.exp())
        print(f"  how likely each row has which contrast, of {scales}: {shares}")
    runs.note_written(options.run, *(path for path in written if path != beside or numbers is not None))
    if numbers is not None:
        files.write_array(beside, numbers.numpy())
        print(f"  which rows of the data they are: {beside}")


def impute(options: ImputeOptions) -> None:
    """`grbm impute`: what is missing of an array, filled in."""
    require("--noise-std", options.noise_std, 0)
    require("--chains", options.chains, 1)
    require("--replicas", options.replicas, 1)
    require("--steps", options.steps, 4)
    if not all(0 <= share <= 1 for share in options.quantiles):
        raise UserError(f"--quantiles must be numbers from 0 to 1, got {' '.join(map(str, options.quantiles))}.")
    if options.quantiles and options.noise_std:
        raise UserError("--quantiles are of missing values given exact ones: leave out --noise-std.")
    import numpy as np
    import torch

    from grbm import runs
    from grbm.data.delimited import fill_text
    from grbm.data.kinds import TEXT, table_kind
    from grbm.data.loading import reading_of
    from grbm.data.named import WRITTEN, write_table
    from grbm.runs.encoding import impute_rows, require_within, rows_with_gaps, strangeness, table_of
    from grbm.runs.sampling import on_device
    from grbm.samplers.conditional import Filling

    run, options = read_run(options.run, options.weights), replace(options, file=file_of(options.file))
    rows = rows_with_gaps(run, options.file, options.key, note)
    require_within(run, torch.from_numpy(rows), str(options.file))
    kind = table_kind(options.file)
    name = options.file.name.removesuffix(".gz")
    name = name if kind in ("text", "parquet") else f"{options.file.stem}.npy"
    path = options.out or options.run / runs.IMPUTED / name
    require_written(path, TEXT if kind == "text" else ())
    kind_of_others = path.suffix if path.suffix.lower() in WRITTEN else ".csv"
    shares = tuple(dict.fromkeys(options.quantiles))
    errors = path.with_suffix(f".std{kind_of_others}")
    of_shares = [path.with_suffix(f".q{share!r}{kind_of_others}") for share in shares]
    refuse_out(options.overwrite, path, errors, *of_shares)
    note_units(strangeness(run, torch.from_numpy(rows)))
    filling = Filling(options.steps, options.steps // 4, options.chains, options.replicas, options.seed)
    filled, std = impute_rows(run, rows, options.noise_std, filling)
    gaps = int(np.isnan(rows).sum())
    if kind == "text" and options.noise_std == 0 and path.suffix.lower() not in (".parquet", ".npz", ".npy"):
        table = table_of(run, options.file, options.key)
        gaps = fill_text(options.file, path, filled, table.places, reading_of(run.config.dataset))
    else:
        write_table(path, filled, run.columns)
    write_table(errors, std, run.columns)
    if shares:
        n_gappy = int(np.isnan(rows).any(1).sum())
        note(f"Drawing {DRAWS} values of each gap in {n_gappy:,} rows, which can take minutes.")
        drawn = Filling(options.steps, options.steps - 1, DRAWS, seed=options.seed)
        found = on_device(run).quantiles(torch.from_numpy(rows), shares, drawn)
        for target, each in zip(of_shares, found.numpy(), strict=True):
            write_table(target, each, run.columns)
    runs.note_written(options.run, path, errors, *of_shares)
    print(f"{gaps:,} of {rows.size:,} numbers were missing and are filled in by their means: {path}")
    if options.noise_std > 0:
        print(f"  all others are means given noise of standard deviation {options.noise_std:g}")
    print(f"  their standard deviations: {errors}")
    for share, target in zip(shares, of_shares, strict=True):
        print(f"  their quantiles {share}: {target}")


def score(options: ScoreOptions) -> None:
    """`grbm score`: how likely each row of a table is."""
    require("--n", options.n, 0)
    import torch

    from grbm import runs
    from grbm.data.named import write_table
    from grbm.report import odd
    from grbm.runs.encoding import names_of_rows, rows_with_gaps, strangeness

    run, options = read_run(options.run, options.weights), replace(options, file=file_of(options.file))
    rows = torch.from_numpy(rows_with_gaps(run, options.file, options.key, note))
    path = options.out or options.run / runs.SCORES / f"{options.file.stem}.csv"
    require_written(path)
    refuse_out(options.overwrite, path)
    note_units(strangeness(run, rows))
    index = names_of_rows(run, options.file, options.index, note)
    if index is not None and path.suffix.lower() in (".npy", ".npz"):
        note(f"{path} holds numbers alone, without the names of the rows.")
    own = None
    with suppress(UserError):
        own = run.load_data()
    note(f"Scoring {len(rows):,} rows, which can take minutes where rows have gaps or limits.")
    scored = odd.score(run, rows, own, seed=options.seed)
    write_table(path, odd.as_array(scored), odd.COLUMNS, index)
    runs.note_written(options.run, path)
    print("\n".join(odd.lines(run, rows, scored, options.n, index, seed=options.seed)))
    print(f"  log-density and p-value of each row: {path}")


def export(options: ExportOptions) -> None:
    """`grbm export`: a machine for other programs."""
    from grbm import runs
    from grbm.interchange.programs import Encoder, write_onnx, write_program

    run, path = read_run(options.run, options.weights), options.out
    refuse_out(options.overwrite, path, path / runs.CONFIG, path / runs.WEIGHTS)  # a file, or a folder of two
    if path.is_dir() and path.suffix in (".onnx", ".pt2"):
        raise UserError(f"{path} is a folder; give the name of a file.")
    scale = run.transform
    if run.model.censoring.n and path.suffix in (".onnx", ".pt2"):
        raise UserError(
            "Codes of censored columns are means over chains, which no exported program runs: write them with "
            f"grbm encode {options.run}."
        )
    if run.frame.is_scaled.any():
        kind = "with bounds" if run.frame.bounds.n else "of a common number"
        raise UserError(
            f"{options.run} learned columns {kind} on another scale, which no exported program makes: write codes "
            f"with grbm encode {options.run}."
        )
    encoder = Encoder(run.model, scale.mean, scale.scale, scale.projection)
    if path.suffix == ".onnx":
        sizes = {"grbm.n_visible": str(run.model.n_visible), "grbm.n_hidden": str(run.model.n_hidden)}
        write_onnx(encoder, path, {"grbm.run": options.run.resolve().name, **sizes})
        print(f"Encoder, input x in the data's units, output probabilities: {path}")
        means, scales = (f"{float(x.min()):.4g} to {float(x.max()):.4g}" for x in (scale.mean, scale.scale))
        print(
            f"  It makes (x - mean)/scale of x itself: means {means}, scales {scales}; all of them are in its metadata"
        )
    elif path.suffix == ".pt2":
        write_program(encoder, path)
        print(f"Encoder, from x in the data's units to hidden probabilities: {path} (torch.export.load)")
    elif path.suffix:
        raise UserError(f"{path}: .onnx and .pt2 files can be written, and a folder, whose name has no suffix.")
    elif run.frame.is_whitened:
        raise UserError(
            f"{options.run} learned whitened rows, of which no GRBM in the data's own units is made: its units would "
            f"share a full covariance. Write its encoder (.onnx or .pt2), or train with --dataset.standardise pixel."
        )
    else:
        own = run.model.double().rescaled(scale.mean[scale.kept], scale.scale[scale.kept])
        own.censoring = run.frame.censoring.mapped(lambda limit: limit[scale.kept])  # without rounding
        own.save_pretrained(path)  # in float64: far from 0, float32 has too few digits
        print(f"The machine in the data's own units, float64: {path} (grbm.GRBM.from_pretrained)")
        if left_out := (~scale.kept).nonzero()[:, 0].tolist():
            print(f"It has no unit for constant columns; leave them out of its input: {', '.join(map(str, left_out))}.")
    made = [path / runs.CONFIG, path / runs.WEIGHTS] if path.is_dir() else [path]  # and not what lay there
    runs.note_written(options.run, *made)


def require_written(path: Path, also: tuple[str, ...] = ()) -> None:
    """Raise UserError for a file whose suffix is none of those of tables that are written, or of others allowed."""
    from grbm.data.named import WRITTEN

    if path.suffix.lower() not in (*WRITTEN, *also):
        raise UserError(f"--out must end in {', '.join(WRITTEN)}, the formats that are written, got {path}.")
