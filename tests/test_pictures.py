"""Pictures become the numbers that a calculation in NumPy has, whatever their mode, depth, turn and transparency."""

import json
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from grbm import UserError, cli
from grbm.data.pictures import Look, Pictures, open_pictures
from tests.helpers import TINY, on_white, refused, thrice, upright

SIDE, PLAIN = 8, Look()


def some(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def decoded(folder: Path, look: Look = PLAIN) -> np.ndarray:
    """Pictures (n, height, width, 3) in the numbers of bytes, from 0 to 255."""
    rows, (channels, height, width), *_ = open_pictures(folder, look)
    return 255 * rows[:].numpy().reshape(-1, channels, height, width).transpose(0, 2, 3, 1)


def notes(pictures: Pictures, where: str = "HERE") -> list[str]:
    said: list[str] = []
    pictures.describe(where, said.append)
    return said


def write_tiff(path: Path, array: np.ndarray, photometric: int, order: str = "<") -> None:
    """An uncompressed TIFF file (height, width, samples), of whatever numbers."""
    height, width, samples = array.shape
    kind = {"u": 1, "i": 2, "f": 3}[array.dtype.kind]
    content = array.astype(array.dtype.newbyteorder(order)).tobytes()
    bits, at = struct.pack(f"{order}{samples}H", *[8 * array.itemsize] * samples), 8 + 2 + 10 * 12 + 4
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, samples, at if samples > 2 else 8 * array.itemsize)]
    entries += [(259, 3, 1, 1), (262, 3, 1, photometric), (273, 4, 1, at + len(bits)), (277, 3, 1, samples)]
    entries += [(278, 4, 1, height), (279, 4, 1, len(content)), (339, 3, 1, kind)]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}IH", 8, len(entries))
    for tag, form, count, value in entries:
        value_of = "Hxx" if form == 3 and count == 1 else "I"
        head += struct.pack(f"{order}HHI{value_of}", tag, form, count, value)
    path.write_bytes(head + bytes(4) + bits + content)


def write_png(path: Path, array: np.ndarray, clear: tuple[int, ...] | None = None) -> None:
    """A PNG file of 16 bits a channel (height, width, 1, 2, 3 or 4), perhaps with a colour that is transparent."""
    height, width, channels = array.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in array)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0))
        + (chunk(b"tRNS", struct.pack(f">{len(clear)}H", *clear)) if clear else b"")
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "p").mkdir()
    return tmp_path / "p"


GREY, COLOUR, ALPHA = some(6, SIDE), some(6, SIDE, 3), some(6, SIDE, seed=1)
PALETTE = some(256, 3, seed=2)
INDEX = np.minimum(GREY, 199)


def picture_of(mode: str) -> tuple[Image.Image, dict[str, object], np.ndarray, float]:
    """A picture, how it is saved, the colours that it should have, and how far rounding may be from them."""
    exact, rounded = 1e-3, 1.01
    if mode == "1":
        return Image.fromarray(GREY > 100), {}, thrice(255.0 * (GREY > 100)), exact
    if mode in ("P", "PA", "P clear", "P partly clear", "gif clear"):
        image = Image.fromarray(INDEX)
        image.putpalette(PALETTE.tobytes())
        if mode == "PA":
            image = Image.merge("LA", (Image.fromarray(INDEX), Image.fromarray(ALPHA)))
            image.putpalette(PALETTE.tobytes())
            return image, {}, on_white(PALETTE[INDEX], ALPHA), rounded
        alpha, options = np.full(256, 255), {}
        if mode == "P partly clear":
            alpha, options = some(256, seed=3), {"transparency": some(256, seed=3).tobytes()}
        elif mode != "P":
            alpha[INDEX[2, 2]] = 0
            options = {"transparency": int(INDEX[2, 2])}
        return image, options, on_white(PALETTE[INDEX], alpha[INDEX]), rounded
    if mode == "LA":
        return Image.fromarray(np.dstack([GREY, ALPHA]), "LA"), {}, on_white(thrice(GREY), ALPHA), rounded
    if mode == "RGBA":
        return Image.fromarray(np.dstack([COLOUR, ALPHA])), {}, on_white(COLOUR, ALPHA), rounded
    if mode == "L clear":
        clear = 255 * (GREY[1, 1] != GREY)
        return Image.fromarray(GREY), {"transparency": int(GREY[1, 1])}, on_white(thrice(GREY), clear), exact
    if mode == "RGB clear":
        clear = 255 * (COLOUR[1, 1] != COLOUR).any(-1)
        return Image.fromarray(COLOUR), {"transparency": tuple(COLOUR[1, 1].tolist())}, on_white(COLOUR, clear), exact
    if mode == "CMYK":
        ink = some(6, SIDE, 4).astype(float)
        return (
            Image.fromarray(ink.astype(np.uint8), "CMYK"),
            {},
            (255 - ink[..., :3]) * (255 - ink[..., 3:]) / 255,
            2.01,
        )
    if mode == "YCbCr":
        luma, blue, red = np.moveaxis(some(6, SIDE, 3) / 4 + 96, -1, 0).round()
        green = luma - 0.344136 * (blue - 128) - 0.714136 * (red - 128)
        colours = np.stack([luma + 1.402 * (red - 128), green, luma + 1.772 * (blue - 128)], -1)
        return Image.fromarray(np.dstack([luma, blue, red]).astype(np.uint8), "YCbCr"), {}, colours, 2.01
    if mode == "LAB":  # of greys: L* and no colour
        light = ((GREY / 255 * 100 + 16) / 116) ** 3
        light = np.where(light > 216 / 24389, light, GREY / 255 * 100 * 27 / 24389)
        light = np.where(light > 0.0031308, 1.055 * light ** (1 / 2.4) - 0.055, 12.92 * light)
        return Image.fromarray(np.dstack([GREY, 0 * GREY, 0 * GREY]), "LAB"), {}, thrice(255 * light), 2.01
    if mode in ("I", "I;16", "I;16B"):
        kind = {"I": "<i4", "I;16": "<u2", "I;16B": ">u2"}[mode]
        deep = 13 * GREY.astype(kind) + 7
        return Image.fromarray(deep.astype(kind)), {}, thrice(deep / 4095 * 255), 0.51
    if mode == "F":
        return Image.fromarray((GREY / 300).astype(np.float32)), {}, thrice(GREY / 300 * 255), 0.51
    image = {"L": GREY, "RGB": COLOUR}[mode]
    return Image.fromarray(image), {}, thrice(image) if mode == "L" else image, exact


MODES = {
    "png": ["1", "L", "L clear", "LA", "P", "P clear", "P partly clear", "RGB", "RGB clear", "RGBA", "I;16"],
    "tif": ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "I;16", "I;16B", "F"],
    "gif": ["1", "L", "P", "gif clear"],
    "bmp": ["1", "L", "P", "RGB"],
    "webp": ["RGB", "RGBA"],
    "ppm": ["1", "L", "RGB"],
}


@pytest.mark.parametrize(("suffix", "mode"), [(suffix, mode) for suffix, modes in MODES.items() for mode in modes])
def test_every_mode(folder, suffix, mode):
    image, options, expected, within = picture_of(mode)
    if suffix == "webp":
        options |= {"lossless": True, "exact": True}
    image.save(folder / f"0.{suffix}", **options)
    np.testing.assert_allclose(decoded(folder)[0], expected, rtol=0, atol=within)
    luma = expected @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(decoded(folder, Look(grey=True))[0, ..., 0], luma, rtol=0, atol=within + 1)


@pytest.mark.parametrize("kind", ["u1", "u2", "i2", "i4", "u4", "f4"])
def test_every_depth_of_tiff(folder, kind):
    """Of integers up to 4,000, in 12 bits, and of fractions; 0 is black, or white."""
    numbers = GREY / 256 if kind == "f4" else GREY if kind == "u1" else 16 * np.minimum(GREY, 250).astype(int)
    shades = numbers / {"f4": 1, "u1": 255}.get(kind, 4095) * 255
    for name, order, photometric in (("a", "<", 1), ("b", ">", 1), ("c", "<", 0), ("d", ">", 0)):
        path = folder / f"{name}.tif"
        write_tiff(path, numbers.astype(kind)[..., None], photometric, order)
        try:
            Image.open(path)
        except OSError:  # Pillow does not read all of them
            with pytest.raises(UserError, match=path.name):
                open_pictures(folder, PLAIN)
            path.unlink()
        else:
            expected = shades if photometric else 255 - shades
            np.testing.assert_allclose(decoded(folder)[-1, ..., 0], expected, rtol=0, atol=0.51)
    assert (folder / "a.tif").exists()


TURNED = ("L", "LA", "I", "I;16", "I;16B", "F", "RGB", "RGBA", "CMYK")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("suffix", "mode"),
    [("jpg", "RGB"), ("png", "RGB"), ("png", "I;16"), ("webp", "RGB"), *(("tif", m) for m in TURNED)],
)
def test_every_orientation(folder, orientation, suffix, mode):
    """The first row and column of the file are these sides of the picture (EXIF 2.32, 4.6.4)."""
    smooth = np.add.outer(16 * np.arange(6), 9 * np.arange(SIDE)).astype(np.uint8)
    plain = {"I": "<i4", "I;16": "<u2", "I;16B": ">u2", "F": "<f4", "L": "u1"}
    layers = {
        "LA": [smooth, ALPHA],
        "RGB": [smooth] * 3,
        "RGBA": [smooth] * 3 + [ALPHA],
        "CMYK": [smooth, 0 * smooth, 0 * smooth, 0 * smooth],
    }
    stored = smooth.astype(plain[mode]) if mode in plain else np.dstack(layers[mode])
    image = Image.fromarray(stored, "CMYK") if mode == "CMYK" else Image.fromarray(stored)
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(folder / f"0.{suffix}", exif=exif, quality=100, lossless=True)
    x = on_white(thrice(smooth), ALPHA) if mode.endswith("A") else thrice(smooth).astype(float)
    x = (
        255 - np.dstack([x[..., 0], 0 * smooth, 0 * smooth])
        if mode == "CMYK"
        else x / (x.max() / 255 if mode == "F" else 1)
    )
    np.testing.assert_allclose(decoded(folder)[0], upright(x, orientation), rtol=0, atol=2.5)


@pytest.mark.parametrize(
    ("largest", "white"),
    [(1, 1), (2, 255), (255, 255), (256, 1023), (4080, 4095), (4096, 16383), (30000, 65535), (70000, 2**18 - 1)],
)
def test_white_is_of_the_whole_collection(folder, largest, white):
    """A dim picture stays dim beside a bright one, whichever comes first, and 8-bit pictures keep their own white."""
    for name, top in (("a", largest // 2), ("b", largest), ("c", largest // 3)):
        Image.fromarray(np.linspace(0, top, 64).astype(np.int32).reshape(8, 8)).save(folder / f"{name}.tif")
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(folder / "d.png")
    pictures = open_pictures(folder, PLAIN)
    assert pictures.white == white
    expected = [np.rint(top // 1 / white * 255) for top in (largest // 2, largest, largest // 3)]
    assert decoded(folder).max((1, 2, 3)).round().tolist() == [*expected, 200]
    (said,) = notes(pictures)
    assert f"{white:,}" in said
    assert "3 of 4" in said
    other = open_pictures(folder, Look(white=2.0 * white))  # as a run has it that learned from brighter ones
    assert 255 * float(other.rows[1:2].max()) == pytest.approx(expected[1] / 2, abs=0.51)
    if largest > 2:
        below = open_pictures(folder, Look(white=largest / 2))
        assert float(below.rows[1:2].max()) == 1
        assert f"up to {largest:,}" in notes(below)[0]


def test_fractions_above_1_are_scaled_by_the_largest(folder):
    for k, top in enumerate((0.5, 1.25)):
        Image.fromarray(np.linspace(0, top, 64, dtype=np.float32).reshape(8, 8)).save(folder / f"{k}.tif")
    assert open_pictures(folder, PLAIN).white == 1.25
    assert decoded(folder).max((1, 2, 3)).round().tolist() == [102, 255]


@pytest.mark.parametrize("number", [-1.0, np.nan, np.inf])
def test_numbers_that_are_no_light(folder, capsys, number):
    for k in range(2):
        Image.fromarray(np.full((8, 8), number if k else 1.0, np.float32)).save(folder / f"{k}.tif")
    refused(["train", "images", "--data", folder, *TINY], capsys, "1.tif", "negative, infinite or NaN")


def test_grey_of_16_bits_with_a_transparent_shade(folder):
    deep = 13 * GREY.astype(int)[..., None]
    write_png(folder / "0.png", deep, (int(deep[0, 0, 0]),))
    expected = np.where(deep == deep[0, 0, 0], 255, deep / 4095 * 255)
    np.testing.assert_allclose(decoded(folder)[0, ..., :1], expected, rtol=0, atol=0.51)
    assert len(notes(open_pictures(folder, PLAIN))) == 2  # of bits, and of transparency


@pytest.mark.parametrize("write", ["png 2", "png 3", "png 4", "png 3 clear", "tif 3"])
def test_colours_of_16_bits(folder, write):
    """Pillow has the upper bytes alone, so colours of fewer bits are refused."""
    kind, channels, *clear = write.split()
    deep = 257 * some(6, SIDE, int(channels)).astype(int)

    def save(numbers):
        if kind == "tif":
            write_tiff(folder / "0.tif", numbers.astype("u2"), 2)
        else:
            write_png(folder / "0.png", numbers, tuple(numbers[0, 0].tolist()) if clear else None)

    save(deep)
    colour, alpha = deep / 257, np.full(deep.shape[:2], 255)
    if channels in ("2", "4"):
        colour, alpha = colour[..., :-1], colour[..., -1]
    elif clear:
        alpha = 255 * (deep != deep[0, 0]).any(-1)
    pictures = open_pictures(folder, PLAIN)
    np.testing.assert_allclose(decoded(folder)[0], on_white(colour, alpha) + np.zeros(3), rtol=0, atol=1.01)
    assert "1 of 1 pictures in HERE have colours of 16 bits" in notes(pictures)[0]
    save(deep // 16)
    with pytest.raises(UserError, match="16 bits"):
        open_pictures(folder, PLAIN)


def test_frames_after_the_first_are_counted(folder):
    frames = [Image.fromarray(some(SIDE, SIDE, 3, seed=k)) for k in range(4)]
    frames[0].save(folder / "0.gif", save_all=True, append_images=frames[1:])
    frames[0].save(folder / "1.tif", save_all=True, append_images=frames[1:3])
    frames[0].save(folder / "2.png")
    pictures = open_pictures(folder, PLAIN)
    assert len(pictures.rows) == 3
    assert (pictures.found.several, pictures.found.later) == (2, 5)
    (said,) = notes(pictures)
    assert "2 of 3 pictures in HERE" in said
    assert "5" in said
    np.testing.assert_allclose(decoded(folder)[1], np.asarray(frames[0]), atol=1e-3)


HIDDEN = ["._a.png", ".a.png", ".ipynb_checkpoints/a.png", "__MACOSX/._a.png", "__MACOSX/a.png", "b/@eaDir/a.png"]


def test_what_systems_leave_beside_pictures_is_no_data(folder, tmp_path):
    for name in ("a.png", "b/b.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.fromarray(COLOUR).save(folder / name)
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.mkdir("folder.png") if hasattr(archive, "mkdir") else archive.writestr("folder.png/", b"")
        for name in ("a.png", "b/b.png"):
            archive.write(folder / name, f"inside/{name}")
        for name in HIDDEN:
            archive.writestr(f"inside/{name}", b"\0\5\x16\7")
    for name in HIDDEN:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\0\5\x16\7")
    hidden = tmp_path / ".mine"  # a place that the user names is looked into, however it is called
    folder.rename(hidden)
    for where in (hidden, tmp_path / "p.zip"):
        rows = open_pictures(where, PLAIN).rows
        assert len(rows) == 2
        assert torch.equal(rows[:1], rows[1:])


def test_what_another_version_decoded_is_decoded_again(folder, monkeypatch):
    """The cache belongs to the code that decoded, not only to the files and the look of them."""
    Image.fromarray(COLOUR).save(folder / "0.png")
    before = open_pictures(folder, PLAIN).rows[:]
    assert torch.equal(open_pictures(folder, PLAIN).rows[:], before)
    monkeypatch.setattr("grbm.data.pictures._flat", lambda picture, look: Image.new("RGB", picture.size))
    assert torch.equal(open_pictures(folder, PLAIN).rows[:], before)  # from the cache
    monkeypatch.setattr("grbm.data.pictures.DECODER", "of another version")
    assert float(open_pictures(folder, PLAIN).rows[:].max()) == 0


def test_a_run_keeps_its_white(folder, tmp_path, capsys):
    """Where it goes on, and for other pictures: a dim one is encoded as it would be among those learned from."""
    for k in range(12):
        Image.fromarray(some(8, 8, seed=k).astype(np.uint16) * 16).save(folder / f"{k}.tif")
    (tmp_path / "dim").mkdir()
    Image.fromarray(some(8, 8, seed=0).astype(np.uint16)).save(tmp_path / "dim" / "0.tif")
    args = ["train", "images", "--data", str(folder), *TINY, "--out", str(tmp_path / "run"), "--dataset.grey"]
    assert cli.main(args) == 0
    assert "4,095 is white" in (said := capsys.readouterr().err)
    assert "--dataset.white" in said
    assert json.loads((tmp_path / "run" / "config.json").read_text())["dataset"]["white"] == 4095
    assert cli.main([*args, "--resume"]) == 0  # the same command, without the white that was chosen
    assert cli.main([*args, "--resume", "--dataset.white", "65535"]) == 2
    capsys.readouterr()
    assert cli.main(["encode", str(tmp_path / "run"), str(tmp_path / "dim")]) == 0
    said = capsys.readouterr().err
    assert "4,095 is white" in said
    assert "--dataset" not in said  # an option of `grbm train` alone
    written = decoded(tmp_path / "dim", Look(white=4095.0)).max()
    assert written == pytest.approx(255 * 255 / 4095, abs=1)


def test_what_is_made_of_pictures_is_said(folder, tmp_path, capsys):
    for k in range(12):
        clear = np.zeros((8, 8, 4), np.uint8)
        clear[2:6, 2:6, 3] = 100 + k
        Image.fromarray(clear).save(folder / f"{k}.png")
    args = ["train", "images", "--data", folder, *TINY, "--out", tmp_path / "run", "--dataset.white", "7"]
    assert cli.main([str(word) for word in args]) == 0
    said = capsys.readouterr().err
    assert said.count("12 of 12 pictures") == 1
    assert "white" in said
    assert "--dataset.white changes nothing" in said
    assert decoded(folder).max() == pytest.approx(255)
