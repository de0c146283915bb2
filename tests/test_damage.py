"""What is damaged, planted, lost or too large: one sentence and exit code 2, and nothing of the user's is lost."""

import base64
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import signal
import stat
import struct
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from grbm import UserError, cli, runs
from grbm.core.files import read_tensors
from grbm.core.typed import is_kind
from grbm.data.arrays import column_names, open_array
from grbm.data.images import load_idx
from grbm.data.loading import statistics
from grbm.data.pictures import Look, open_pictures
from grbm.evaluate import features
from grbm.report import page
from grbm.report.doctor import _mixing
from grbm.runs import checkpoint
from grbm.runs.config import RunConfig
from grbm.runs.training import train
from tests.helpers import TINY, new_state, refused, rest_in_whole


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage") / "run"
    assert cli.main(["train", "digits", *TINY, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


# Pickles


class Planted:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("kind", ["pickle", "torch", "state dict"])
def test_a_pickle_given_as_weights_is_not_executed(run, tmp_path, capsys, kind):
    pytest.importorskip("torch_fidelity")
    path, proof = tmp_path / "weights.pth", tmp_path / "executed"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Planted(proof)))
    else:
        torch.save({"fc.weight": torch.zeros(2), "x": Planted(proof)} if kind == "state dict" else Planted(proof), path)
    refused(["evaluate", run, "--fid", "--fid-weights", path], capsys, "does not hold the Inception network's tensors")
    assert not proof.exists()
    torch.load(path, weights_only=False) if kind != "pickle" else pickle.loads(path.read_bytes())
    assert proof.exists()  # so the file does what it is for


def test_a_download_is_held_against_its_digest(tmp_path, monkeypatch):
    module = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    source = tmp_path / "published.pth"
    source.write_bytes(b"other bytes")
    monkeypatch.setattr(module, "URL_INCEPTION_V3", source.as_uri())
    with pytest.raises(UserError, match=r"could not be had \(invalid hash value"):
        features.inception_2048(None)
    (tmp_path / "checkpoints" / "published.pth").write_bytes(b"planted")
    with pytest.raises(UserError, match=re.escape("published.pth is not")):
        features.inception_2048(None)
    monkeypatch.setattr(features, "PUBLISHED", hashlib.sha256(b"planted").hexdigest())
    with pytest.raises(UserError, match="does not hold the Inception network's tensors"):
        features.inception_2048(None)


# --overwrite and folders


@pytest.mark.parametrize("content", ['{"seed": 3}', '{"name": "my program"}', "{}", "[]", "no JSON"])
def test_another_programs_folder_is_no_run(tmp_path, capsys, content):
    folder = tmp_path / "project"
    (folder / "samples").mkdir(parents=True)
    (folder / "config.json").write_text(content)
    (folder / "samples" / "samples.npy").write_text("mine")
    refused(["train", "digits", *TINY, "--out", folder, "--overwrite"], capsys, folder)
    assert (folder / "samples" / "samples.npy").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["samples/holiday.png", "figures/paper.pdf", "checkpoints/update-00000003/mine.txt", "codes/labels.npy"]
)
def test_overwrite_removes_only_what_the_program_wrote(run, capsys, name):
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_text("mine")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused(["train", "digits", *TINY, "--out", run, "--overwrite"], capsys, run / name)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.whole
def test_overwrite_removes_all_that_the_program_wrote(run, tmp_path, capsys):
    np.save(tmp_path / "gaps.npy", np.where(np.eye(3, 64) > 0, np.nan, 0.5))
    train = ["train", "digits", "--train.n-updates", "3", "--model.n-hidden", "6", "--checkpoint.trajectory", "0.9"]
    assert cli.main([*train, "--out", str(run), "--overwrite"]) == 0
    for args in (["sample", run, "--n", "3"], ["encode", run, "test"], ["impute", run, tmp_path / "gaps.npy"]):
        assert cli.main([str(a) for a in args]) == 0
    assert cli.main(["evaluate", str(run), "--samples", "10", "--ais-steps", "5", "--ais-chains", "10"]) == 0
    assert cli.main(["mixing", str(run), "--draws", "10", "--burn-in", "0", "--chains", "4", "--netcdf"]) == 0
    present = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert {"codes/test.npy", "codes/test.rows.npy", "imputed/gaps.npy", "mixing.nc", "written.txt"} <= present
    assert cli.main(["train", "digits", *TINY, "--seed", "5", "--out", str(run), "--overwrite"]) == 0
    after = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert {name.split("/")[0] for name in after} == {
        *("config.json", "metrics.jsonl", "model.safetensors", "model_raw.safetensors", "data.safetensors"),
        *("status.json", "checkpoints"),
    }
    capsys.readouterr()


@pytest.mark.parametrize(
    "name",
    [
        *(".config.json.swp", ".report.html.notes", ".notes.20251122.txt", "figures/.backup.original.svg"),
        *("wandb/run-my-notes/thesis.tex", "tensorboard/events.out.tfevents.123.other.program"),
    ],
)
def test_files_that_only_look_like_the_programs_stay(run, capsys, name):
    (run / name).parent.mkdir(exist_ok=True, parents=True)
    (run / name).write_text("mine")
    refused(["train", "digits", *TINY, "--out", run, "--overwrite"], capsys, Path(name).name)
    (run / runs.STATUS).unlink()
    assert cli.main(["resume", str(run), "--no-figures"]) == 0
    assert (run / name).read_text() == "mine"
    (run / runs.CONFIG).unlink()
    refused(["train", "digits", *TINY, "--out", run], capsys, run)
    assert (run / name).read_text() == "mine"


def test_what_a_kill_left_of_files_being_replaced_goes(run):
    left = [".config.json.a1b2c3d4.json", "figures/.samples.png.x_y_z_00.png", ".metrics.jsonl.12345678.jsonl"]
    for name in left:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("half")
    assert cli.main(["train", "digits", *TINY, "--out", str(run), "--overwrite"]) == 0
    assert not any((run / name).exists() for name in left)


def test_data_inside_the_run_that_would_be_removed(run, capsys):
    assert cli.main(["encode", str(run), "test"]) == 0
    codes = run / "codes" / "test.npy"
    args = ["train", "array", "--data", codes, *TINY, "--out", run, "--overwrite"]
    refused(args, capsys, codes, run)
    assert codes.is_file()


def test_what_the_user_asked_for_in_the_folder_is_the_programs(run, capsys):
    """And what lay there under a name that might have been used is not."""
    (run / "z.rows.npy").write_text("mine")
    np.save(run.parent / "x.npy", np.ones((3, 64)))
    assert cli.main(["encode", str(run), str(run.parent / "x.npy"), "--out", str(run / "z.npy")]) == 0
    assert cli.main(["export", str(run), str(run / "model")]) == 0
    refused(["train", "digits", *TINY, "--out", run, "--overwrite"], capsys, "z.rows.npy")
    (run / "z.rows.npy").unlink()
    assert cli.main(["train", "digits", *TINY, "--out", str(run), "--overwrite"]) == 0
    assert not (run / "model").exists()


@pytest.mark.parametrize(
    "name",
    rest_in_whole(
        6,
        *("config.json", "model.safetensors", "figures", "checkpoints", "report.html", "figures/density.png"),
        *("metrics.jsonl", "status.json", "evaluation.json", "samples", "tensorboard", "trajectory", "codes"),
        *("imputed", "wandb", "checkpoints/update-00000003", "checkpoints/update-00000003/state.json"),
    ),
)
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_a_run_is_not_followed(run, tmp_path, capsys, name, dangling):
    """Neither to read nor to write, by any command; the run itself may be a link."""
    elsewhere, link = tmp_path / "elsewhere", run / name
    link.parent.mkdir(exist_ok=True)
    if link.exists():
        link.rename(elsewhere)
    elif not dangling:
        elsewhere.mkdir()
    if dangling:
        shutil.rmtree(elsewhere) if elsewhere.is_dir() else elsewhere.unlink(missing_ok=True)
    link.symlink_to(elsewhere)
    train = ["train", "digits", *TINY, "--out", run]
    for args in (["evaluate", run], ["report", run], ["sample", run], ["resume", run], [*train, "--overwrite"],
                 [*train, "--resume"], ["train", "--config", run, "--out", tmp_path / "new"]):  # fmt: skip
        refused(args, capsys, run)
    assert elsewhere.exists() != dangling
    assert link.is_symlink()
    assert cli.main(["list", str(tmp_path)]) == 0
    assert str(run) not in capsys.readouterr().out


def test_a_run_may_be_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    for args in (["sample", "--n", "2"], ["evaluate", "--samples", "10"], ["resume", "--no-figures"]):
        assert cli.main([args[0], str(tmp_path / "link"), *args[1:]]) == 0


def test_a_page_embeds_what_was_drawn_for_it(trained_runs, tmp_path):
    run = trained_runs.copy(tmp_path / "run", "isotropic", *TINY, "--sampling.n-steps", "2")
    (run / "figures").mkdir(exist_ok=True)
    (run / "figures" / "density.png").write_bytes(b"sesame")
    assert cli.main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert base64.b64encode(b"sesame").decode() not in text
    assert "data, learned density and samples" in text


@pytest.mark.parametrize("command", ["evaluate", "report", "doctor", "mixing", "figures", "encode"])
def test_reading_a_strangers_run_fetches_and_creates_nothing(run, tmp_path, capsys, monkeypatch, command):
    def download(*args, **options):
        raise AssertionError("a download")

    monkeypatch.setattr("grbm.data.images._download", download)
    config = json.loads((run / "config.json").read_text())
    config["dataset"]["name"] = "mnist"
    (run / "config.json").write_text(json.dumps(config | {"data_dir": str(tmp_path / "theirs")}))
    args = [command, run, *(["train"] if command == "encode" else [])]
    for more in ([], ["--data-dir", tmp_path / "mine"]):
        if command in ("report", "doctor"):
            assert cli.main([str(a) for a in [*args, *more]]) in (0, 3)
            assert command == "report" or str(more[-1] if more else "theirs") in capsys.readouterr().err
        else:
            refused([*args, *more], capsys, more[-1] if more else "theirs")
    assert not (tmp_path / "theirs").exists()
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "figures/samples.png", "report.html"])
def test_no_command_replaces_a_file_of_a_run(run, tmp_path, capsys, name):
    """`--overwrite` is for files that a command made itself."""
    before = (run / name).read_bytes() if (run / name).exists() else None
    other = shutil.copytree(run, tmp_path / "other")
    refused(["compare", run, other, "--out", other / ".." / "run" / name, "--overwrite"], capsys, name)
    if name.endswith("config.json"):
        refused(["export", run, run, "--overwrite"], capsys, run)
        refused(["encode", run, "test", "--out", run / "samples/samples.npy", "--overwrite"], capsys, "samples.npy")
    assert before == ((run / name).read_bytes() if (run / name).exists() else None)


def test_a_machine_in_a_run_may_be_written_anew(run):
    for more in ([], ["--overwrite"]):
        assert cli.main(["export", str(run), str(run / "model"), *more]) == 0


@pytest.mark.parametrize("what", ["removed", "renamed", "replaced", "metrics"])
def test_a_run_whose_folder_is_gone_is_not_reported_as_done(tmp_path, what):
    folder = tmp_path / "run"

    def lose(update, record):
        if update == 2:
            if what == "removed":
                shutil.rmtree(folder)
            elif what == "metrics":
                (folder / "metrics.jsonl").unlink()
            else:
                folder.rename(tmp_path / "other")
            if what == "replaced":
                shutil.copytree(tmp_path / "other", folder)

    config = RunConfig()
    config = replace(config, train=replace(config.train, n_updates=6), model=replace(config.model, n_hidden=4))
    config = replace(config, objective=replace(config.objective, n_steps=2), log=replace(config.log, tensorboard=False))
    with pytest.raises(UserError, match=re.escape(f"{folder}, or a file in it")):
        train(config, folder, on_update=lose)
    assert what in ("replaced", "metrics") or not folder.exists()
    if what == "renamed":
        train(replace(config, log=replace(config.log, points=7)), tmp_path / "other", resume=True)
        assert runs.read(tmp_path / "other").status.ended == "finished"


def test_checkpoints_beyond_ten_to_the_eighth_sort_by_number(tmp_path):
    state = new_state()
    for update in (99_999_998, 99_999_999, 100_000_000, 100_000_001):
        state.update = update
        checkpoint.save(tmp_path, state)
    assert [checkpoint.read(p).update for p in checkpoint.updates(tmp_path)][:2] == [100_000_001, 100_000_000]
    assert checkpoint.newest(tmp_path, new_state()).update == 100_000_001
    checkpoint.prune(tmp_path, keep=2, update=100_000_001)
    assert [p.name for p in checkpoint.updates(tmp_path)] == ["update-100000001", "update-100000000"]


def test_checkpoints_of_others_behind_a_link_stay(tmp_path):
    """Another run's, another program's, and one of the number that is to be written."""
    shared = tmp_path / "shared"
    state = new_state()
    for update in (1, 2):
        state.update = update
        checkpoint.save(shared, state, run="theirs")
    (shared / "update-00000003").mkdir()
    (shared / "update-00000003" / "notes.txt").write_text("mine")
    (shared / "update-00000004").mkdir()
    (shared / "update-00000004" / "state.json").write_text("of another program")
    (shared / ".partial-x").mkdir()
    (shared / ".partial-x" / "notes.txt").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(shared)
    before = sorted(p.relative_to(shared) for p in shared.rglob("*"))
    for update in (5, 6, 7):
        state.update = update
        checkpoint.save(tmp_path / "run" / "checkpoints", state, run="ours")
        checkpoint.prune(tmp_path / "run" / "checkpoints", 1, update, "ours")
    assert sorted(p.relative_to(shared) for p in shared.rglob("*") if "00000007" not in str(p)) == before
    for update in (2, 3):
        state.update = update
        with pytest.raises(UserError, match=f"update-0000000{update}"):
            checkpoint.save(tmp_path / "run" / "checkpoints", state, run="ours")


# Data that changed or were damaged


@pytest.mark.parametrize("row", [1, 977, 1499])
def test_any_changed_row_is_noticed_by_a_resume(tmp_path, capsys, row):
    """Whether it is trained on or held out; 64 rows were looked at before."""
    x = np.random.default_rng(0).normal(size=(1500, 3))
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "run"
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", str(out)]) == 0
    (out / runs.STATUS).unlink()
    assert cli.main(["resume", str(out), "--no-figures"]) == 0
    (out / runs.STATUS).unlink()
    x[row, 2] += 1e-9
    np.save(tmp_path / "x.npy", x)
    refused(["resume", out, "--no-figures"], capsys, out)


def test_a_run_without_a_checkpoint_begins_with_the_data_of_now(tmp_path):
    """Their standardisation too, since nothing was learned from the others."""
    x = np.random.default_rng(0).normal(size=(100, 3))
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "run"
    assert cli.main(["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--out", str(out)]) == 0
    (out / runs.STATUS).unlink()
    shutil.rmtree(out / "checkpoints")
    np.save(tmp_path / "x.npy", 1000 + 50 * x)
    assert cli.main(["resume", str(out), "--no-figures"]) == 0
    assert float(runs.read(out).transform.mean.mean()) == pytest.approx(1000, abs=30)


def test_the_fingerprint_is_the_same_wherever_the_rows_lie(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(500, 300)).astype(np.float32))
    config = RunConfig()
    config = replace(config, dataset=replace(config.dataset, name="array"), data=tmp_path / "x.npy")
    held, stored = (statistics(replace(config, memory=m).load_data(), "x") for m in (256, 0))
    assert held.fingerprint == stored.fingerprint
    assert held.fingerprint.startswith("450 + 50 x 300, ")


def flip(path: Path, at: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def test_a_flipped_bit_at_the_end_of_a_large_archive(tmp_path):
    """Its checksum is of all of it, however many parts it is read in."""
    np.savez(tmp_path / "x.npz", x=np.zeros((1 << 18, 1)))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[-1000] ^= 1  # before the directory, in the last of the numbers
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.npz"):
        open_array(tmp_path / "x.npz")


def test_a_flipped_bit_in_an_archive_is_noticed(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 3))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", x=x)
        whole = (tmp_path / "x.npz").read_bytes()
        assert np.array_equal(open_array(tmp_path / "x.npz")[:].numpy(), x)
        for at in range(200, len(whole) - 150, 37):
            (tmp_path / "x.npz").write_bytes(whole)
            flip(tmp_path / "x.npz", at)
            with pytest.raises(UserError, match=r"x\.npz"):
                open_array(tmp_path / "x.npz")


@pytest.fixture
def folder_of_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k in range(12):
        pixels = np.random.default_rng(k).integers(0, 256, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{k}.png")
    return folder


def test_damaged_pictures_in_the_cache_are_decoded_again(folder_of_pictures, tmp_path):
    before = open_pictures(folder_of_pictures, Look())[0][:]
    (cached,) = (tmp_path / "cache").glob("*.npy")
    stamp = cached.stat().st_mtime_ns
    assert torch.equal(open_pictures(folder_of_pictures, Look())[0][:], before)
    assert cached.stat().st_mtime_ns == stamp  # decoded once
    whole = cached.read_bytes()
    cached.unlink()
    cached.write_bytes(whole[:1000] + bytes(len(whole) - 1000))
    assert torch.equal(open_pictures(folder_of_pictures, Look())[0][:], before)


def zipped(folder: Path, path: Path, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for picture in sorted(folder.iterdir()):
            archive.write(picture, picture.name)
    return path


def test_a_damaged_zip_is_not_replaced_by_what_was_decoded_before(folder_of_pictures, tmp_path):
    path = zipped(folder_of_pictures, tmp_path / "x.zip")
    open_pictures(path, Look())
    times = path.stat()
    flip(path, 300)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(UserError, match=r"0\.png in .* is damaged"):
        open_pictures(path, Look())


# Files that are not what they should be


def npy(header: str, body: bytes = bytes(64), version: int = 1) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 4"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -4)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 4)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 4)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 40)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2.0, 4)}"),
        npy("{'descr': '<Q9', 'fortran_order': False, 'shape': (2, 4)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 4)}", version=9),
        npy("(" * 400),
        npy("\x00" * 30),
        b"\x93NUMPY",
        b"",
    ],
)
def test_npy_headers(tmp_path, capsys, content):
    (tmp_path / "x.npy").write_bytes(content)
    refused(["train", "array", "--data", tmp_path / "x.npy", *TINY, "--out", tmp_path / "run"], capsys, "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    refused(["train", "array", "--data", tmp_path / "x.npz", *TINY, "--out", tmp_path / "run"], capsys, "x.npz")
    assert not (tmp_path / "run").exists()


def test_a_header_may_not_reach_into_the_next_member(tmp_path):
    """Its checksum is right, and the bytes after it are there: they are another array's."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 40)}"))
        archive.writestr("y.npy", bytes(4000))
    with pytest.raises(UserError, match="its header promises 640 bytes of numbers, and 64 are there"):
        open_array(tmp_path / "x.npz", "x")


def encrypted(path: Path) -> None:
    """Set the flag that says so, in the directory and in front of every file."""
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = content.find(mark)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(mark, at + 4)
    path.write_bytes(content)


def method(path: Path, number: int) -> None:
    """Name a way of compression that nobody knows."""
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + offset : at + offset + 2] = struct.pack("<H", number)
            at = content.find(mark, at + 4)
    path.write_bytes(content)


@pytest.mark.parametrize("change", ["encrypted", "method", "cut", "no directory"])
@pytest.mark.parametrize("kind", ["npz", "zip"])
def test_odd_archives(folder_of_pictures, tmp_path, capsys, change, kind):
    path = tmp_path / f"x.{kind}"
    if kind == "npz":
        np.savez(path, x=np.ones((9, 3)))
    else:
        zipped(folder_of_pictures, path)
    if change == "encrypted":
        encrypted(path)
    elif change == "method":
        method(path, 77)
    elif change == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(path.read_bytes().replace(b"PK\x01\x02", b"PK\x00\x00"))
    preset = "array" if kind == "npz" else "images"
    refused(["train", preset, "--data", path, *TINY, "--out", tmp_path / "run"], capsys, path.name)


def test_bombs_meet_a_limit(folder_of_pictures, tmp_path, capsys, monkeypatch):
    """Nothing is inflated: the sizes that the directories promise are looked at before."""
    monkeypatch.setattr("grbm.data.arrays.BOMB_SIZE", 1 << 20)
    monkeypatch.setattr("grbm.data.pictures.LARGEST_FILE", 1 << 20)
    monkeypatch.setattr("grbm.data.images.LARGEST", 1 << 20)
    out = ["--out", tmp_path / "run"]
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((4 << 20, 1), np.uint8))
    refused(["train", "array", "--data", tmp_path / "x.npz", *TINY, *out], capsys, tmp_path / "x.npz", "4 MB")
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.png", bytes(4 << 20))
    refused(["train", "images", "--data", tmp_path / "x.zip", *TINY, *out], capsys, "x.png", tmp_path / "x.zip", "4 MB")
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bytes(4 << 20)))
    (raw / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(8)))
    with pytest.raises(UserError, match="not a complete IDX file"):
        load_idx("mnist", tmp_path)


def png_header(width: int, height: int) -> bytes:
    """A picture of which only the size is there."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return head + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))


def tif(mode: str, colour: float = 0) -> bytes:
    content = io.BytesIO()
    Image.new(mode, (9, 9), colour).save(content, "TIFF")
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("x.png", png_header(13_000, 13_000), "13,000 x 13,000 pixels", id="large png"),
        pytest.param("x.png", png_header(200_000, 200_000), "not a readable picture", id="huge png"),
        ("x.ppm", b"P6 9 9 999999 " + bytes(300), "x.ppm"),
        ("x.ppm", b"P6 9 -9 255 " + bytes(300), "x.ppm"),
        ("x.ppm", b"P6 nine 9 255 " + bytes(300), "x.ppm"),
        ("x.ppm", b"P6 9 9 255 " + bytes(3), "x.ppm"),
        ("x.tif", tif("F", -1.0), "negative"),
        ("x.tif", tif("RGB")[:60], "x.tif"),
        ("x.tif", b"II*\x00" + bytes(40), "x.tif"),
        ("x.png", b"", "x.png"),
    ],
)
def test_odd_pictures(folder_of_pictures, tmp_path, capsys, name, content, words):
    (folder_of_pictures / name).write_bytes(content)
    args = ["train", "images", "--data", folder_of_pictures, *TINY, "--out", tmp_path / "run"]
    refused(args, capsys, words)
    assert not (tmp_path / "run").exists()


def test_pictures_in_disguise_start_no_other_program(folder_of_pictures, tmp_path, monkeypatch):
    """PIL would hand an EPS file to Ghostscript, whatever it is called."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    (folder_of_pictures / "0.png").write_bytes(eps)
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *a, **k: pytest.fail("Ghostscript"))
    with pytest.raises(UserError, match=r"0\.png"):
        open_pictures(folder_of_pictures, Look())


def test_pictures_of_another_size_are_not_kept_in_memory(folder_of_pictures):
    Image.new("RGB", (900, 900)).save(folder_of_pictures / "3.png")
    with pytest.raises(UserError, match="is 900 x 900 pixels, the first picture in"):
        open_pictures(folder_of_pictures, Look())


def test_a_folder_of_pictures_that_may_not_be_looked_into(folder_of_pictures, monkeypatch):
    def walk(folder, onerror):
        onerror(PermissionError(13, "Permission denied", "pictures/private"))
        return iter(())

    monkeypatch.setattr(os, "walk", walk)
    with pytest.raises(UserError, match=r"pictures/private cannot be read \(Permission denied\)"):
        open_pictures(folder_of_pictures, Look())


PIPES = {
    "config.json": ["doctor"],
    "evaluation.json": ["report"],
    "mixing.json": ["report"],
    "fid.json": ["report"],
    "status.json": ["doctor"],
    "checkpoints/update-00000003/state.json": ["sample", "--weights", "best"],
}


@pytest.mark.parametrize("name", rest_in_whole(2, *PIPES))
def test_a_pipe_in_place_of_a_file_is_not_waited_for(run, name):
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    signal.alarm(30)
    try:
        assert cli.main([PIPES[name][0], str(run), *PIPES[name][1:]]) in (0, 2, 3)
    finally:
        signal.alarm(0)


def test_a_pipe_among_the_pictures_is_passed_over(folder_of_pictures):
    os.mkfifo(folder_of_pictures / "pipe.png")
    (folder_of_pictures / "folder.png").mkdir()
    assert len(open_pictures(folder_of_pictures, Look())[0]) == 12


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["images", "--dataset.size", "100000"], "--dataset.size must be at most"),
        (["images", "--dataset.size", "1024", "--model.n-hidden", "10000000"], "needs"),
        (["digits", "--model.n-hidden", "1000000000000"], "use fewer --model.n-hidden"),
        (["digits", "--objective.n-chains", "1000000000000"], "use fewer --objective.n-chains"),
        (["digits", "--train.n-updates", str(10**30)], "must be below"),
        (["isotropic", "--dataset.n-points", "1000000000000"], "use fewer --dataset.n-points"),
    ],
)
def test_sizes_that_no_memory_holds(folder_of_pictures, tmp_path, capsys, args, words):
    data = ["--data", folder_of_pictures] if args[0] == "images" else []
    refused(["train", *args, *data, "--out", tmp_path / "run"], capsys, words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["sample", "--n", "1000000000000"], "draw fewer"),
        (["evaluate", "--samples", "1000000000000"], "memory"),
        (["mixing", "--chains", "1000000000"], "memory"),
        (["mixing", "--draws", "1000000000000"], "memory"),
        (["sample", "--n", str(10**30)], "--n"),
    ],
)
def test_counts_that_no_memory_holds(run, capsys, command, words):
    refused([command[0], run, *command[1:]], capsys, words)


def test_an_archive_larger_than_memory_is_refused_before_it_is_unpacked(tmp_path, capsys, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(2000, 50)))
    monkeypatch.setattr("grbm.core.devices.memory", lambda device="cpu": 500_000)
    monkeypatch.setattr("zipfile.ZipFile.open", lambda *a, **k: pytest.fail("it was opened"))
    args = ["train", "array", "--data", tmp_path / "x.npz", *TINY, "--out", tmp_path / "run"]
    refused(args, capsys, tmp_path / "x.npz", "memory")


@pytest.mark.parametrize("standardise", ["none", "pixel", "scalar"])
@pytest.mark.parametrize("largest", [1e308, 1e200, 1e30])
def test_numbers_that_float32_cannot_square(tmp_path, capsys, standardise, largest):
    """Refused before there is a run folder, or brought to size by the standardisation."""
    x = np.random.default_rng(0).normal(size=(60, 3))
    x[:, 1] *= largest
    np.save(tmp_path / "x.npy", np.clip(x, -1.7e308, 1.7e308))
    args = ["train", "array", "--data", tmp_path / "x.npy", "--dataset.standardise", standardise, *TINY]
    if largest == 1e30 and standardise != "none":
        assert cli.main([str(a) for a in [*args, "--out", tmp_path / "run"]]) == 0
    else:
        refused([*args, "--out", tmp_path / "run"], capsys, "column 1")
        assert not (tmp_path / "run").exists()


# JSON of the right syntax and the wrong types

COMMANDS = (["sample", "--n", "2", "--overwrite"], ["doctor"], ["report"], ["resume", "--no-figures"], ["figures"])


def changes(value):
    """A document with one value at a time replaced by one of another type, at any depth."""
    yield from (None, True, -1, 10**400, 2.5, "text", [], {}, [1, "x"], {"x": {}})
    if isinstance(value, dict):
        for name, child in value.items():
            for other in changes(child):
                yield value | {name: other}
        yield dict(list(value.items())[1:])
        yield value | {"never heard of": 1}
    elif isinstance(value, list):
        for k, child in enumerate(value):
            for other in changes(child):
                yield [*value[:k], other, *value[k + 1 :]]


@pytest.mark.parametrize(
    "name",
    rest_in_whole(3, "config.json", "status.json", "evaluation.json", "metrics.jsonl", "mixing.json", "fid.json"),
)
def test_json_of_wrong_types_is_read_or_refused(run, name, capsys, monkeypatch):
    """By every function that reads it; a tenth of the cases here, more in the fuzzer."""
    if name in ("evaluation.json", "mixing.json", "fid.json"):
        if name == "mixing.json":
            assert cli.main(["mixing", str(run), "--draws", "10", "--burn-in", "0", "--chains", "4"]) == 0
        elif name == "evaluation.json":
            args = ["--samples", "10", "--ais-steps", "5", "--ais-chains", "10", "--log-likelihood"]
            assert cli.main(["evaluate", str(run), *args]) == 0
        else:
            row = {"FID": 3.0, "FID ±": 0.1}
            settings = {"n": 100, "model": runs.model_digest(runs.read(run).model)}
            table = {"rows": {"this run": row}, "protocol": ["x"], "settings": settings, "own_protocol": ["y"]}
            (run / name).write_text(json.dumps(table))
    whole = json.loads(
        (run / name).read_text().splitlines()[0] if name == "metrics.jsonl" else (run / name).read_text()
    )

    for k, wrong in enumerate(changes(whole)):
        if isinstance(wrong, dict) and "model" in whole and k % 2 and name not in ("config.json", "status.json"):
            wrong = wrong | {"model": whole["model"]}
        (run / name).write_text(json.dumps(wrong))
        if name in ("evaluation.json", "mixing.json", "fid.json"):
            found = runs.read(run)
            list(page._scored(found))
            list(_mixing(found))
        else:
            try:
                found = runs.read(run)
                page._head(found, None)
                if name == "metrics.jsonl" and k % 20 == 0:  # drawing takes its time
                    list(page._learned(found, None, 1))
            except UserError:
                continue
    assert k > 30


def test_a_number_of_another_type_is_no_number():
    assert is_kind(float, 3)
    assert not is_kind(float, True)
    assert not is_kind(int, 3.0)
    assert not is_kind(float, 10**400)
    assert is_kind(dict[str, float | None], {"x": None, "y": 1.5})
    assert not is_kind(dict[str, float | None], {"x": "1.5"})


def test_values_that_no_run_has(run, capsys):
    """Right types and impossible numbers; parts of a record; whole numbers that no other program holds."""
    whole = json.loads((run / "config.json").read_text())
    for part, name, value in (
        ("dataset", "held_out", float("nan")),
        ("dataset", "held_out", 5.0),
        ("sampling", "n_steps", -1),
    ):
        (run / "config.json").write_text(json.dumps(whole | {part: whole[part] | {name: value}}))
        refused(["doctor", run], capsys, "is not what `grbm train` wrote", name.replace("_", "-"))
    (run / "config.json").write_text(json.dumps(whole))
    divergence = {"cause": "gradient", "update": 3, "remedies": [], "unit": 2}
    (run / "status.json").write_text(json.dumps({"ended": "diverged", "update": 3, "divergence": divergence}))
    assert cli.main(["doctor", str(run)]) == 3
    assert "(variance unknown" in " ".join(capsys.readouterr().out.split())
    (run / "metrics.jsonl").write_text(json.dumps({"update": 10**30, "seconds": 1.0}))
    assert cli.main(["figures", str(run)]) == 0


@pytest.mark.parametrize("damage", ["nan", "zero scale", "int", "shape"])
def test_statistics_of_the_data_that_cannot_be(run, capsys, damage):
    """Without a checksum, as somebody else may have written them."""
    tensors = read_tensors(run / "data.safetensors")
    if damage == "shape":
        tensors["image_shape"] = torch.tensor([2, 8, 4])
    elif damage == "int":
        tensors["base_var"] = tensors["base_var"].long()
    else:
        tensors["scale"][3] = {"nan": torch.nan, "zero scale": 0.0}[damage]
    safetensors.torch.save_file(tensors, run / "data.safetensors")
    refused(["sample", run], capsys, "is not what `grbm train` wrote")


@pytest.mark.parametrize("damage", ["npy", "cut", "empty", "strings", "nan", "bias"])
def test_a_damaged_first_part_of_the_network(tmp_path, damage):
    path = tmp_path / "weights.npz"
    arrays = {"Conv2d_1a_3x3.weight": np.ones((32, 3, 3, 3), np.float32), "Conv2d_1a_3x3.bias": np.ones(32, np.float32)}
    if damage == "strings":
        arrays["Conv2d_1a_3x3.weight"] = np.array(["x"] * 9)
    elif damage == "nan":
        arrays["Conv2d_1a_3x3.weight"][0] = np.nan
    elif damage == "bias":
        arrays["Conv2d_1a_3x3.bias"] = np.ones(3, np.float32)
    np.savez_compressed(path, **arrays)
    if damage == "npy":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif damage in ("cut", "empty"):
        path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else 200])
    with pytest.raises(UserError, match=r"weights\.npz"):
        features.inception_768(path)


def test_a_name_that_is_not_unicode(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.npy")
    np.save(path, np.random.default_rng(0).normal(size=(40, 3)))
    args = ["train", "array", "--data", path, "--updates", "3", "--n-hidden", "4", "--no-figures"]
    assert cli.main([*args, "--out", str(tmp_path / "run")]) == 0


def test_names_of_columns_are_held_against_their_checksum_and_number(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.ones((5, 3)), columns=np.array(["a", "b"]))
    with pytest.raises(UserError, match="2 names in its columns and 3 columns"):
        column_names(tmp_path / "x.npz", 3)
    np.savez(tmp_path / "x.npz", x=np.ones((5, 3)), columns=np.array(["alpha", "beta", "gamma"]))
    content = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(content.replace("beta".encode("utf-32-le"), "bета".encode("utf-32-le")))
    with pytest.raises(UserError, match=r"is not a whole \.npz file"):
        column_names(tmp_path / "x.npz", 3)


def test_a_stray_file_among_checkpoints_does_not_end_training(run):
    (run / "checkpoints" / ".partial-notes").write_text("mine")
    (run / runs.STATUS).unlink()
    shutil.rmtree(checkpoint.updates(run / "checkpoints")[0])
    assert cli.main(["resume", str(run), "--no-figures"]) == 0
    assert (run / "checkpoints" / ".partial-notes").read_text() == "mine"


def test_stray_files_among_the_models_of_training(run, capsys):
    (run / "trajectory").mkdir()
    for name in ("notes.safetensors", "00000001 (copy).safetensors", "-1.safetensors", "x.txt"):
        (run / "trajectory" / name).write_text("mine")
    assert runs.folder.read_trajectory(run) == []


def test_what_cannot_be_read_is_not_called_damaged(run, tmp_path, monkeypatch, capsys):
    """A test as root, whom nothing is forbidden, needs help."""
    np.save(tmp_path / "x.npy", np.ones((9, 3)))
    forbidden = [run / "model.safetensors", run / "config.json", run / "status.json", tmp_path / "x.npy"]
    for path in forbidden:
        path.chmod(0)
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    for path in forbidden[:3]:
        refused(["sample", run], capsys, path, "permissions")
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    refused(["train", "array", "--data", forbidden[3], *TINY], capsys, forbidden[3], "permissions")


def test_an_unreadable_file_of_weights(tmp_path, monkeypatch):
    """As above, for root too."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x")

    def forbidden(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("safetensors.torch.load_file", forbidden)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
        read_tensors(path)
