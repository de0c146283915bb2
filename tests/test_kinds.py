"""What is no array says what it is and what makes one of it, by a command that works; and every key can be named."""

import os
import pickle
import re
import shlex
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image

from grbm import UserError, cli, runs
from grbm.cli.completing import words
from grbm.data.arrays import column_names, open_array
from grbm.data.kinds import conversion
from grbm.runs.recording import MetricsLog
from tests.helpers import TINY, refused, rest_in_whole
from tests.messages import messages

X = np.random.default_rng(0).normal(size=(30, 3))


def write_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(X))


WRITE = {
    "zip.pt": lambda path: torch.save(torch.from_numpy(X), path),
    "zipped by torch.bin": lambda path: torch.save(torch.from_numpy(X), path),
    "old.pth": lambda path: torch.save(torch.from_numpy(X), path, _use_new_zipfile_serialization=False),
    "x.pkl": write_pickle,
    "x.safetensors": lambda path: safetensors.numpy.save_file({"NAME": X}, path),
    "x.mat": lambda path: pytest.importorskip("scipy.io").savemat(path, {"NAME": X}),
    "sheet.xlsx": lambda path: path.write_bytes(b"PK"),
}


@pytest.mark.parametrize("name", WRITE)
def test_what_is_no_array_says_how_it_becomes_one(tmp_path, monkeypatch, capsys, name):
    """The command that is named makes it."""
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    WRITE[name](path)
    kind, command, into = conversion(path)
    refused(["train", "array", "--data", path, *TINY], capsys, path, kind, command)
    refused(["train", path], capsys, path, kind, command)
    python, option, code = shlex.split(command)
    assert (python, option) == ("python", "-c")
    if name == "sheet.xlsx":  # which needs a package that is not here
        compile(code, "advice", "exec")
        return
    exec(code, {})
    np.testing.assert_allclose(open_array(into)[:].numpy(), X, atol=1e-12)


def test_data_in_the_place_of_a_preset(tmp_path, capsys):
    """A file or folder is learned by the preset that goes with it."""
    folder = tmp_path / "some pictures"
    (folder / "in it").mkdir(parents=True)
    for k in range(4):
        pixels = np.random.default_rng(k).integers(0, 256, (5, 5, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "in it" / f"{k}.png")
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, path.name)
    np.save(tmp_path / "x.npy", X)
    for path, preset in ((folder, "images"), (tmp_path / "p.zip", "images"), (tmp_path / "x.npy", "array")):
        assert cli.main(["train", str(path), *TINY, "--out", str(tmp_path / f"run {path.name}")]) == 0
        assert runs.read(tmp_path / f"run {path.name}").config.preset == preset
    run = tmp_path / "run x.npy"
    advised = shlex.split(re.search(r"grbm (resume .*)$", refused(["train", run], capsys, "resume"))[1])
    assert cli.main(advised) == 0
    (tmp_path / "empty").mkdir()
    refused(["train", tmp_path / "empty"], capsys, "without pictures")


@pytest.mark.parametrize(
    ("name", "members", "word"),
    [
        ("p.zip", {"a.png": b""}, "images"),
        ("p.npz", {"a.txt": b"", "b.csv": b""}, "numpy.savez"),
        ("a.png", None, "images"),
        ("x.abc", None, "csv"),
    ],
)
def test_other_files_say_what_they_are(tmp_path, name, members, word):
    path = tmp_path / name
    if members is None:
        path.write_bytes(b"something")
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
    with pytest.raises(UserError, match=f"{name}.*{word}"):
        open_array(path)


def test_only_arrays_of_an_archive_are_listed(tmp_path):
    np.savez(tmp_path / "x.npz", x=X)
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
        for name in ("__MACOSX/._x.npy", "README.txt"):
            archive.writestr(name, b"\0\5\x16\7")
    assert np.array_equal(open_array(tmp_path / "x.npz")[:].numpy(), X)
    with pytest.raises(UserError, match="--key: x\\."):
        open_array(tmp_path / "x.npz", "README.txt")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_python_objects_in_an_archive(tmp_path, save):
    """Which array holds them, and how it is written without."""
    names = np.array(["a", "b", "c"], object)
    save(tmp_path / "names.npz", x=X, columns=names)
    assert np.array_equal(open_array(tmp_path / "names.npz")[:].numpy(), X)
    with pytest.raises(UserError, match=r"names\.npz.*'columns'.*to_numpy\(str\)"):
        column_names(tmp_path / "names.npz", 3)
    save(tmp_path / "names.npz", x=X, columns=names.astype(str))
    assert column_names(tmp_path / "names.npz", 3) == ("a", "b", "c")
    save(tmp_path / "numbers.npz", x=X.astype(object), columns=names.astype(str))
    with pytest.raises(UserError, match=r"numbers\.npz.*'x'.*astype\(float\)"):
        open_array(tmp_path / "numbers.npz")
    np.save(tmp_path / "numbers.npy", X.astype(object))
    with pytest.raises(UserError, match=r"numbers\.npy.*astype\(float\)"):
        open_array(tmp_path / "numbers.npy")


@pytest.fixture
def keyed(tmp_path, monkeypatch):
    """A run on x.npy, stopped half way, and an archive in which its data are one of two arrays."""
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "two.npz", X_train=X, y=np.arange(30))
    after = MetricsLog.after

    def interrupted(log, progress):
        if progress.update == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        after(log, progress)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "after", interrupted)
        args = ["train", "array", "--data", str(tmp_path / "x.npy"), *TINY, "--train.n-updates", "6"]
        assert cli.main([*args, "--train.rounds", "0", "--out", str(tmp_path / "run")]) == 143
    return tmp_path


@pytest.mark.parametrize(
    "command",
    rest_in_whole(
        3,
        ["train", "array", *TINY, "--out", "OTHER"],
        ["evaluate", "RUN", "--samples", "10"],
        ["encode", "RUN", "DATA"],
        ["resume", "RUN"],
        ["mixing", "RUN", "--chains", "4", "--draws", "20", "--burn-in", "2"],
        ["figures", "RUN"],
        ["report", "RUN"],
        ["encode", "RUN", "train"],
        ["impute", "RUN", "DATA", "--steps", "4"],
    ),
    ids=lambda words: " ".join(words[:1] + words[2:3]),
)
def test_every_command_that_asks_for_a_key_takes_one(keyed, capsys, command):
    places = {"RUN": keyed / "run", "DATA": keyed / "two.npz", "OTHER": keyed / "other"}
    args = [str(places.get(word, word)) for word in command]
    args += [] if "DATA" in command else ["--data", str(keyed / "two.npz")]
    capsys.readouterr()
    if command[0] != "report":  # whose page does without data that cannot be read
        assert cli.main(args) == 2
        assert "--key: X_train, y" in capsys.readouterr().err
    assert cli.main([*args, "--key", "X_train"]) == 0
    if command[0] == "resume":  # its settings, and so its checkpoints, stay those that it was begun with
        assert runs.read(keyed / "run").status.ended == "finished"
        assert runs.read(keyed / "run").config.dataset.key is None


def test_wherever_data_are_given_a_key_is():
    for command, (_, flags) in words().items():
        assert ("--data" in flags) <= ("--key" in flags) or command == "reproduce", command  # which has pictures alone


def test_flags_in_messages_are_there():
    """A sentence names options of the command that it names; and in data/, where any may have asked, of all."""
    flags = {command: set(flags) for command, (_, flags) in words().items()}
    of_all = set.intersection(*(flags[name] for name in flags if name != "reproduce" and "--data" in flags[name]))
    others = {"--extra", "--rules", "--only", "--help", "--version"}  # uv's, those of `grbm reproduce fig1`, all's
    for module, said in messages():
        named = re.findall(r"grbm (\w+)[^-,;]*?(--[a-z][a-z0-9.-]*[a-z0-9])", said)
        for command, flag in named:
            assert flag in flags.get(command, {flag}), said
        bare = set(re.findall(r"--[a-z][a-z0-9.-]*[a-z0-9]", said)) - {flag for _, flag in named} - others
        allowed = of_all if module.startswith("data/") else set().union(*flags.values())
        assert bare <= allowed, f"{module}: {said}"


def test_what_cannot_be_encoded_says_what_helps(keyed, capsys):
    """Gaps are averaged over, or filled by `grbm impute`; what is infinite is refused."""
    assert cli.main(["resume", str(keyed / "run")]) == 0
    rows = X[:4].copy()
    rows[2, 1] = np.nan
    np.save(keyed / "gaps.npy", rows)
    assert cli.main(["encode", str(keyed / "run"), str(keyed / "gaps.npy")]) == 0
    assert cli.main(["impute", str(keyed / "run"), str(keyed / "gaps.npy"), "--steps", "4"]) == 0
    rows[2, 1] = np.inf
    np.save(keyed / "gaps.npy", rows)
    said = refused(["encode", keyed / "run", keyed / "gaps.npy", "--overwrite"], capsys, "row 2, column 1", "infinite")
    assert "impute" not in said


def test_a_run_that_diverged_is_not_said_to_go_on(keyed, capsys):
    run, args = keyed / "run", ["train", "array", "--data", keyed / "x.npy", *TINY, "--out", keyed / "run"]
    assert "--resume" in refused(args, capsys, run)
    (run / "status.json").write_text((run / "status.json").read_text().replace("interrupted", "diverged"))
    assert "--resume" not in refused(args, capsys, run, "diverged")
