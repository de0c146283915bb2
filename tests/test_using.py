"""What a run is used for on data: gaps filled in, and files that other programs read."""

import json
import sys

import numpy as np
import pytest
import torch

from grbm import GRBM, UserError, cli, impute, runs
from grbm.core.randomness import generator
from grbm.data.images import load_digits
from grbm.interchange.programs import Encoder, write_onnx, write_program
from tests.helpers import random_model, refused


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("applying") / "run"
    assert cli.main(["train", "digits", "--out", str(folder), "--train.n-updates", "300", "--no-figures"]) == 0
    return folder


def test_gaps_are_filled_in_the_units_of_the_data(digits, tmp_path, capsys):
    rows = load_digits()[0][:60].double().numpy()
    gaps = rows.copy()
    gaps[:, 40:] = np.nan
    np.save(tmp_path / "gaps.npy", gaps)
    assert cli.main(["impute", str(digits), str(tmp_path / "gaps.npy"), "--steps", "80"]) == 0
    assert "1,440 of 3,840 numbers were missing" in capsys.readouterr().out
    filled, std = (np.load(digits / "imputed" / name) for name in ("gaps.npy", "gaps.std.npy"))
    np.testing.assert_array_equal(filled[:, :40], rows[:, :40])
    assert (std[:, :40] == 0).all()
    assert (std[:, 40:].mean(0) > 0).all()
    known = load_digits()[0][60:].double().numpy().mean(0)
    assert np.square(filled - rows)[:, 40:].mean() < 0.8 * np.square(known - rows)[:, 40:].mean()
    run = runs.read(digits)
    z = run.transform(torch.from_numpy(gaps))
    again = impute(run.model, z, n_steps=80, burn_in=20, base=run.frame.base, seed=1)
    np.testing.assert_allclose(filled, run.transform.inverse(again.mean).numpy(), atol=1e-5)
    np.testing.assert_allclose(std, (again.std * run.transform.scale).numpy(), atol=1e-5)
    assert abs(run.transform.scale[0] - 1) > 0.5
    assert cli.main(["impute", str(digits), str(tmp_path / "gaps.npy")]) == 2
    assert str(digits / "imputed" / "gaps.npy") in capsys.readouterr().err


def test_noise_is_taken_away_in_the_units_of_the_data(digits, tmp_path):
    rows = load_digits()[0][:200].double().numpy()
    noisy = rows + 0.25 * np.random.default_rng(0).normal(size=rows.shape)  # of pixels in [0, 1]
    np.save(tmp_path / "noisy.npy", noisy)
    out = tmp_path / "clean.npy"
    command = ["impute", str(digits), str(tmp_path / "noisy.npy"), "--noise-std", "0.25", "--out", str(out)]
    assert cli.main([*command, "--steps", "60"]) == 0
    assert np.square(np.load(out) - rows).mean() < 0.7 * np.square(noisy - rows).mean()
    run = runs.read(digits)
    noise_var = (0.25 / run.transform.scale).square()
    z = run.transform(torch.from_numpy(noisy))
    again = impute(run.model, z, noise_var=noise_var, n_steps=60, burn_in=15, base=run.frame.base, seed=1)
    np.testing.assert_allclose(np.load(out), run.transform.inverse(again.mean).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (lambda x: x[:, :10], [], "10 columns"),
        (lambda x: np.where(x > 0.9, np.inf, x), [], "is infinite"),
        (lambda x: np.where(x > 0.9, 1e300, x), [], "too large"),
        (lambda x: x, ["--replicas", "0"], "--replicas must"),
        (lambda x: x, ["--noise-std", "-1"], "--noise-std must be at least 0"),
        (lambda x: x, ["--steps", "1"], "--steps must"),
        (lambda x: x, ["--chains", "0"], "--chains must"),
        (lambda x: x, ["--out", "x.abc"], "must end in .csv"),
    ],
)
def test_wrong_gaps_are_refused(digits, tmp_path, change, flags, message, capsys):
    np.save(tmp_path / "rows.npy", change(load_digits()[0][:20].double().numpy()))
    assert cli.main(["impute", str(digits), str(tmp_path / "rows.npy"), *flags]) == 2
    assert message in capsys.readouterr().err


def test_chains_that_no_memory_holds_are_refused_before_they_are_made(digits, tmp_path, capsys, monkeypatch):
    """Ten chains of 20 rows have 64 visible and 256 hidden units: 768,000 bytes at 12 for each."""
    np.save(tmp_path / "rows.npy", np.full((20, 64), np.nan))
    monkeypatch.setattr("grbm.core.devices.memory", lambda device="cpu": 700_000)
    command = ["impute", digits, tmp_path / "rows.npy", "--chains", "10", "--out", tmp_path / "filled.npy"]
    refused(command, capsys, "20 rows", "10 chains")
    monkeypatch.setattr("grbm.core.devices.memory", lambda device="cpu": 3_000_000)
    assert cli.main([str(x) for x in [*command, "--steps", "4"]]) == 0


def test_the_encoder_elsewhere_gives_the_same_codes(digits, tmp_path, capsys):
    """torch.export and ONNX (in onnxruntime), for other numbers of rows than they were traced with."""
    run = runs.read(digits)
    rows = load_digits()[0][:37]
    with torch.no_grad():
        expected = run.model(run.transform(rows))
    assert cli.main(["export", str(digits), str(tmp_path / "encoder.pt2")]) == 0
    program = torch.export.load(tmp_path / "encoder.pt2").module()
    torch.testing.assert_close(program(rows.float()), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(program(rows[:1].float()), expected[:1], atol=1e-5, rtol=0)
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    assert cli.main(["export", str(digits), str(tmp_path / "encoder.onnx")]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "encoder.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert "x is in the data's own units" in about["grbm.units"]
    scale = runs.read(digits).transform
    for name, numbers in (("grbm.mean", scale.mean), ("grbm.scale", scale.scale)):
        np.testing.assert_allclose(json.loads(about[name]), numbers, rtol=1e-6)
    for part in (rows, rows[:1]):
        (found,) = session.run(["probabilities"], {"x": part.float().numpy()})
        np.testing.assert_allclose(found, expected[: len(part)].numpy(), atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.onnx", "encoder.pt2"]
    assert cli.main(["export", str(digits), str(tmp_path / "encoder.onnx")]) == 2
    assert "encoder.onnx" in capsys.readouterr().err


def test_a_folder_holds_the_machine_in_the_data_s_units(digits, tmp_path, capsys):
    assert cli.main(["export", str(digits), str(tmp_path / "machine")]) == 0
    run, rows = runs.read(digits), load_digits()[0][:37]
    with torch.no_grad():
        ours = GRBM.from_pretrained(tmp_path / "machine")(rows.double())
        codes = runs.read(digits).model.double()(run.transform.exactly(rows))
        torch.testing.assert_close(ours, codes, atol=1e-9, rtol=0)
    with pytest.warns(UserWarning, match="run.fitted.log_prob") as told:  # a run is such a folder too
        assert torch.equal(GRBM.from_pretrained(digits).W, run.model.W)
    assert told[0].filename == __file__, "where it was called"
    assert cli.main(["export", str(digits), str(tmp_path / "x.tflite")]) == 2
    assert ".onnx and .pt2" in capsys.readouterr().err


def test_an_encoder_without_standardisation(tmp_path):
    model = random_model(3, 4, 0, dtype=torch.float32)
    x = torch.randn(5, 3, generator=generator(0, "x"))
    with torch.no_grad():
        torch.testing.assert_close(Encoder(model)(x), model(x))
    write_program(Encoder(model), tmp_path / "a.pt2")
    program = torch.export.load(tmp_path / "a.pt2").module()
    torch.testing.assert_close(program(x), model(x).detach())


def test_onnx_without_its_packages(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match="--extra onnx"):
        write_onnx(Encoder(random_model(3, 4, 0)), tmp_path / "a.onnx")
