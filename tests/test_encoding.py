"""Binary codes: the hidden probabilities of every row, bits with those probabilities, and nothing of wrong data."""

import numpy as np
import pytest
import torch
from PIL import Image

from grbm import cli, runs
from grbm.data.images import load_digits
from grbm.runs import encoding
from tests.helpers import assert_standard


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encode") / "run"
    assert cli.main(["train", "digits", "--out", str(folder), "--train.n-updates", "30", "--no-figures"]) == 0
    return folder


def test_codes_are_the_hidden_probabilities_of_the_standardised_rows(digits, monkeypatch, capsys):
    run = runs.read(digits)
    rows = run.load_data().train
    monkeypatch.setattr(encoding, "CHUNK", 100)  # and rows are in order whatever the chunks
    assert cli.main(["encode", str(digits), "train"]) == 0
    assert "1,618 codes of 256 hidden probabilities" in capsys.readouterr().out
    codes = np.load(digits / "codes" / "train.npy")
    assert codes.dtype == np.float32
    with torch.no_grad():
        np.testing.assert_allclose(codes, run.model(run.transform(rows)).numpy(), atol=1e-6)


def test_bits_have_their_probabilities_and_pack(digits, tmp_path):
    """Mean over 179 rows x 256 units of bit − p, in standard errors; packed bits are the same bits."""
    plain, bits, packed = (tmp_path / f"{name}.npy" for name in ("plain", "bits", "packed"))
    for path, flags in ((plain, []), (bits, ["--bits"]), (packed, ["--packed"])):
        assert cli.main(["encode", str(digits), "test", *flags, "--out", str(path)]) == 0
    p, b = np.load(plain).astype(np.float64), np.load(bits)
    assert b.dtype == np.uint8
    assert set(np.unique(b)) == {0, 1}
    assert_standard((b - p).sum() / np.sqrt((p * (1 - p)).sum()), n_cases=2)
    assert_standard(((b - p) * (p - 0.5)).sum() / np.sqrt((p * (1 - p) * (p - 0.5) ** 2).sum()), n_cases=2)
    for flags, name in ((["--bits"], "test.bits.npy"), (["--packed"], "test.packed.npy"), ([], "test.npy")):
        assert cli.main(["encode", str(digits), "test", *flags]) == 0  # forms do not replace each other
        assert (digits / "codes" / name).is_file()
    folded = np.load(packed)
    assert folded.shape == (len(p), 32)
    np.testing.assert_array_equal(np.unpackbits(folded, axis=1), b)


def test_files_are_encoded_and_wrong_ones_refused(digits, tmp_path, capsys):
    rows = np.random.default_rng(0).random((20, 64))
    np.save(tmp_path / "new.npy", rows)
    assert cli.main(["encode", str(digits), str(tmp_path / "new.npy")]) == 0
    run = runs.read(digits)
    with torch.no_grad():
        expected = run.model(run.transform(torch.from_numpy(rows))).numpy()
    np.testing.assert_allclose(np.load(digits / "codes" / "new.npy"), expected, atol=1e-6)
    np.save(tmp_path / "narrow.npy", rows[:, :10])
    rows[7, 3] = np.inf
    np.save(tmp_path / "hole.npy", rows)
    for what, sentence in (
        ("new.npy", "already exists"),
        ("narrow.npy", "10 columns"),
        ("hole.npy", f"row 7, column 3, of {tmp_path / 'hole.npy'}"),
        ("none.npy", "not a file"),
    ):
        assert cli.main(["encode", str(digits), str(tmp_path / what)]) == 2
        assert sentence in capsys.readouterr().err
    assert not (digits / "codes" / "hole.npy").exists()
    rows[7, 3] = np.nan
    np.save(tmp_path / "gap.npy", rows)
    assert cli.main(["encode", str(digits), str(tmp_path / "gap.npy")]) == 0
    assert "1 of the rows have gaps" in capsys.readouterr().out


def test_pictures_are_made_like_those_that_were_learned(digits, tmp_path, capsys):
    """A grey model encodes colour pictures of any size, and one picture by itself."""
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    (tmp_path / "pictures").mkdir()
    for k, image in enumerate(images):
        Image.fromarray(image).convert("RGB").save(tmp_path / "pictures" / f"{k}.png")
    assert cli.main(["encode", str(digits), str(tmp_path / "pictures")]) == 0
    assert cli.main(["encode", str(digits), str(tmp_path / "pictures" / "1.png")]) == 0
    codes = np.load(digits / "codes" / "pictures.npy")
    run = runs.read(digits)
    with torch.no_grad():
        expected = run.model(run.transform(torch.from_numpy(images.reshape(3, 64) / 255))).numpy()
    np.testing.assert_allclose(codes, expected, atol=1e-5)
    # one row alone goes through another product, which may round its last bit otherwise
    np.testing.assert_allclose(np.load(digits / "codes" / "1.npy"), codes[1:2], atol=1e-6, rtol=0)
    assert "Note" not in capsys.readouterr().err


def test_other_units_are_noticed_and_rows_can_be_found_again(digits, tmp_path, capsys):
    run = runs.read(digits)
    dataset = run.load_data()
    np.save(tmp_path / "levels.npy", 16 * dataset.test.numpy())  # 0 to 16, as scikit-learn has them
    assert cli.main(["encode", str(digits), str(tmp_path / "levels.npy")]) == 0
    assert "the same units?" in capsys.readouterr().err
    assert cli.main(["encode", str(digits), "test", "--out", str(tmp_path / "test.npy")]) == 0
    out, err = capsys.readouterr()
    assert "same units" not in err
    assert "test.rows.npy" in out
    numbers = np.load(tmp_path / "test.rows.npy")
    assert torch.equal(load_digits()[0][numbers], dataset.test)
    assert cli.main(["encode", str(digits), "test", "--out", str(tmp_path / "codes.txt")]) == 2
    assert "--out must end in .npy" in capsys.readouterr().err
