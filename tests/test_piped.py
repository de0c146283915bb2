"""Standard input in place of a file."""

import gzip
import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from grbm import cli
from grbm.cli import piped
from tests.helpers import refused

ROWS = "a,b\n" + "".join(f"{k / 10:.2f},{np.sin(k):.3f}\n" for k in range(60))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("piped")
    (folder / "rows.csv").write_text(ROWS)
    command = ["train", str(folder / "rows.csv"), "--out", str(folder / "run"), "--updates", "30", "--no-figures"]
    assert cli.main([*command, "--train.rounds", "0"]) == 0
    return folder / "run"


def pipe(monkeypatch, content: bytes, is_terminal: bool = False):
    stdin = SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: is_terminal)
    monkeypatch.setattr(sys, "stdin", stdin)


@pytest.mark.parametrize("packed", [False, True])
def test_rows_that_are_piped_have_the_scores_of_a_file(run, packed, monkeypatch, tmp_path, capsys):
    out = [tmp_path / name for name in ("one.csv", "two.csv")]
    assert cli.main(["score", str(run), str(run.parent / "rows.csv"), "--out", str(out[0])]) == 0
    pipe(monkeypatch, gzip.compress(ROWS.encode()) if packed else ROWS.encode())
    assert cli.main(["score", str(run), "-", "--out", str(out[1])]) == 0
    assert out[0].read_text() == out[1].read_text()


def test_every_command_that_reads_rows_takes_them(run, monkeypatch, tmp_path, capsys):
    gaps = ROWS.replace("0.10,", ",").encode()
    array = io.BytesIO()
    np.save(array, np.ones((3, 2)))
    for content, command, name in (
        (gaps, ["impute", str(run), "-", "--out", str(tmp_path / "filled.csv")], "filled.csv"),
        (gaps, ["sample", str(run), "--given", "-", "--n", "2", "--out", str(tmp_path / "given.csv")], "given.csv"),
        (array.getvalue(), ["encode", str(run), "-", "--out", str(tmp_path / "codes.npy")], "codes.npy"),
    ):
        pipe(monkeypatch, content)
        assert cli.main(command) == 0
        assert (tmp_path / name).exists()
    pipe(monkeypatch, ROWS.encode())
    assert cli.main(["evaluate", str(run), "--data", "-"]) == 0
    assert len(np.load(tmp_path / "codes.npy")) == 3


def test_errors_name_the_line_of_what_was_piped(run, monkeypatch, capsys):
    pipe(monkeypatch, ROWS.replace("0.10,", "x,").encode())
    said = refused(["score", str(run), "-"], capsys)
    assert "standard-input.csv, line 3" in said


@pytest.mark.parametrize(
    ("content", "is_terminal", "command", "said"),
    [
        (b"", False, ["score", "RUN", "-"], "it is empty"),
        (b"", True, ["score", "RUN", "-"], "nothing is piped into it"),
        (ROWS.encode(), False, ["train", "-"], "write them to a file"),
    ],
)
def test_what_cannot_be_read_from_a_pipe_is_said(content, is_terminal, command, said, run, monkeypatch, capsys):
    pipe(monkeypatch, content, is_terminal)
    assert said in refused([str(run) if word == "RUN" else word for word in command], capsys)


@pytest.mark.parametrize(("beginning", "kind"), [*piped.BEGINNINGS.items(), (b"a;b\n", ".csv")])
def test_the_kind_shows_in_the_first_bytes(beginning, kind, monkeypatch):
    pipe(monkeypatch, beginning + bytes(5000))
    path = piped.file_of(piped.Path("-"))
    assert path.name == f"standard-input{kind}"
    assert path.read_bytes() == beginning + bytes(5000)
