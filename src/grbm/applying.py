"""The commands that use a run on data: codes, what is missing, and files for other programs."""

import sys
from pathlib import Path

from grbm.errors import UserError
from grbm.inspection import parse, read_run
from grbm.options import EncodeOptions, ExportOptions, ImputeOptions


def encode(args: list[str]) -> None:
    import numpy as np

    from grbm import files, runs
    from grbm.encode import row_numbers, rows_to_encode, strangeness, write_codes

    options = parse(EncodeOptions, args, "grbm encode")
    run = read_run(options.run, options.data_dir, options.data, options.weights)
    rows = rows_to_encode(run, options.what, options.key)
    form = ".packed" if options.packed else ".bits" if options.bits else ""
    path = options.out or options.run / runs.CODES / f"{Path(options.what).stem}{form}.npy"
    if path.exists() and not options.overwrite:
        raise UserError(f"{path} already exists; add --overwrite to replace it, or choose another with --out.")
    if path.suffix != ".npy":
        raise UserError(f"--out must end in .npy, the format that is written, got {path}.")
    _note_units(strangeness(run, rows))
    write_codes(run, rows, path, bits=options.bits, packed=options.packed, seed=options.seed)
    kind = "hidden bits, eight a byte" if options.packed else "hidden bits" if options.bits else "hidden probabilities"
    print(f"{len(rows):,} codes of {run.model.n_hidden} {kind}: {path}")
    numbers = row_numbers(run, options.what)
    if numbers is not None:
        with files.replacing(path.with_suffix(".rows.npy")) as temporary, temporary.open("wb") as file:
            np.save(file, numbers, allow_pickle=False)
        print(f"  which rows of the data they are: {path.with_suffix('.rows.npy')}")


def impute(args: list[str]) -> None:
    import numpy as np
    import torch

    from grbm import runs
    from grbm.encode import strangeness
    from grbm.files import replacing
    from grbm.restore import restore, rows_with_gaps

    options = parse(ImputeOptions, args, "grbm impute")
    for name, least, number in (
        ("--noise-std", 0, options.noise_std),
        ("--chains", 1, options.chains),
        ("--replicas", 1, 1 if options.replicas is None else options.replicas),
    ):
        if not least <= number < float("inf"):
            raise UserError(f"{name} must be at least {least}, got {number}.")
    if options.steps < 4:
        raise UserError(f"--steps must be at least 4, got {options.steps}.")
    run = read_run(options.run, None, None, options.weights)
    rows = rows_with_gaps(run, options.file, options.key)
    path = options.out or options.run / runs.IMPUTED / f"{options.file.stem}.npy"
    if path.suffix != ".npy":
        raise UserError(f"--out must end in .npy, the format that is written, got {path}.")
    errors = path.with_suffix(".std.npy")
    if not options.overwrite and (path.exists() or errors.exists()):
        raise UserError(f"{path} already exists; add --overwrite to replace it, or choose another with --out.")
    _note_units(strangeness(run, torch.from_numpy(rows)))
    filled, std = restore(
        run,
        rows,
        noise_std=options.noise_std,
        n_steps=options.steps,
        n_chains=options.chains,
        n_replicas=options.replicas,
        seed=options.seed,
    )
    for where, array in ((path, filled), (errors, std)):
        with replacing(where) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
    gaps = int(np.isnan(rows).sum())
    print(f"{gaps:,} of {rows.size:,} numbers were missing and are filled in by their means: {path}")
    if options.noise_std > 0:
        print(f"  all others are means given noise of standard deviation {options.noise_std:g}")
    print(f"  their standard deviations: {errors}")


def _note_units(far: float) -> None:
    """Say so where rows lie far out, ``far`` times as far as the training data."""
    if far > 3:
        print(
            f"Note: these rows lie {far:.0f} times as far from the training mean as the training data do; are they in "
            f"the same units?",
            file=sys.stderr,
        )


def export(args: list[str]) -> None:
    from grbm.export import Encoder, write_onnx, write_program

    options = parse(ExportOptions, args, "grbm export")
    run, path = read_run(options.run, None, None, options.weights), options.out
    if path.exists() and not options.overwrite:
        raise UserError(f"{path} already exists; add --overwrite to replace it.")
    if path.is_dir() and path.suffix in (".onnx", ".pt2"):
        raise UserError(f"{path} is a folder; give the name of a file.")
    encoder = Encoder(run.model, *run.standardizer)
    if path.suffix == ".onnx":
        write_onnx(encoder, path)
        print(f"Encoder, input x in the data's units, output probabilities: {path}")
    elif path.suffix == ".pt2":
        write_program(encoder, path)
        print(f"Encoder, from x in the data's units to hidden probabilities: {path} (torch.export.load)")
    elif path.suffix:
        raise UserError(f"--out {path}: .onnx and .pt2 files can be written, and a folder, whose name has no suffix.")
    else:
        run.model.double().rescaled(*run.standardizer).save_pretrained(path)  # far from 0, float32 has too few digits
        print(f"The machine in the data's own units, float64: {path} (grbm.GRBM.from_pretrained)")
