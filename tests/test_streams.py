"""Printing: it never ends a run, fits every encoding, and shows no control character of what is read."""

import errno
import io
import json
import os
import sys
from pathlib import Path

import pytest

from grbm import cli, runs
from grbm.core.streams import Stream, plain, printing
from grbm.report.html import page
from grbm.runs.progress import ProgressBar
from tests.helpers import TINY, refused

NASTY = "\x1b]0;title\x07\x1b[31m\x9b1m\x7f\u202etxt\r\n"


@pytest.fixture
def run(trained_runs, tmp_path) -> Path:
    return trained_runs.copy(tmp_path / "run", "digits", *TINY)


def unread() -> io.TextIOWrapper:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", encoding="utf-8")


@pytest.mark.parametrize("which", ["stdout", "stderr"])
def test_a_run_goes_on_when_its_reader_has_left(which, tmp_path, monkeypatch):
    with unread() as stream:  # and closing it does not raise either
        monkeypatch.setattr(sys, which, stream)
        assert cli.main(["train", "digits", *TINY, "--out", str(tmp_path / "run")]) == 0
        assert cli.main(["list", str(tmp_path)]) == 0
        assert cli.main(["evaluate", str(tmp_path / "nothing")]) == 2
    assert runs.read(tmp_path / "run").status.ended == "finished"


def test_a_terminal_that_is_gone_ends_no_run(tmp_path, monkeypatch):
    """Not the bar either, which writes for itself."""

    class Gone(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setenv("TERM", "xterm")
    assert cli.main(["train", "digits", *TINY, "--out", str(tmp_path / "run")]) == 0
    assert runs.read(tmp_path / "run").status.ended == "finished"


def test_output_that_a_full_disk_lost_is_told(monkeypatch, capsys):
    """Whoever kept it in a file would take half of it for the whole."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        refused(["--help"], capsys, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_every_encoding_can_be_printed_in(encoding, monkeypatch, tmp_path):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert cli.main(["train", "digits", *TINY, "--out", str(tmp_path / "σ²\udcff")]) == 0
    assert {"ascii": "/???", "cp1252": "/?²?", "utf-8": "/σ²?"}[encoding] in written.getvalue().decode(encoding)


def test_a_bar_draws_with_escape_sequences_and_names_beside_it_have_none(monkeypatch, capsys):
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    with printing(), ProgressBar() as progress:
        progress.bar.start()
        progress.protect()
        print("name \x1b[35m")
    assert "\x1b[?25l" in screen.getvalue()  # the cursor is hidden
    assert "name \\x1b[35m" in screen.getvalue()
    assert "\x1b[35m" not in screen.getvalue()


def test_control_characters_are_written_out():
    assert plain("a\x1b[1m\n\tσ\u202e") == r"a\x1b[1m\n\tσ\u202e"
    screen = io.StringIO()
    print("a\tb\x07\x9b\r\u2066", file=Stream(screen))
    assert screen.getvalue() == "a\tb\\x07\\x9b\\r\\u2066\n"
    assert "\x1b" not in page(NASTY, [f"<p>{NASTY}</p>"])


def controls(text: str) -> set[str]:
    return {c for c in text if c in NASTY and not c.isalnum() and c not in "\n[];"}


def test_no_control_character_of_a_strangers_run_is_printed(run, capsys):
    """In settings, the status, records, scores and names."""
    config = json.loads((run / "config.json").read_text())
    config |= {"preset": f"p{NASTY}", "command": f"c{NASTY}", "about": {"changed": [f"a{NASTY}"]}}
    (run / "config.json").write_text(json.dumps(config))
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"ended": "diverged", "machine": NASTY}))
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"update": 4, "seconds": 1.0, NASTY: NASTY}) + "\n")
    other = Path(run.rename(run.with_name("r\x1b[1m\n\x9b")))
    (run.with_name("named")).symlink_to(other)
    for args in (["doctor", other], ["report", other], ["list", run.parent], ["compare", other, run.with_name("named")],
                 ["sample", other], ["doctor", other, "--json"], ["list", run.parent, "--json"]):  # fmt: skip
        more = ["--out", run.parent / "both.html"] if args[0] == "compare" else []
        cli.main([str(a) for a in [*args, *more]])
        said = capsys.readouterr()
        assert not controls(said.out + said.err), args
        assert "Traceback" not in said.err
    for path in (other / "report.html", run.parent / "both.html"):
        assert not controls(path.read_text())


@pytest.mark.parametrize("value", [NASTY, {NASTY: 1}, [NASTY]])
def test_a_refusal_stays_one_line_without_control_characters(run, value, capsys):
    config = json.loads((run / "config.json").read_text())
    for part in ({"sampler": value}, {"dataset": {"name": value}}, {NASTY: 1}):
        (run / "config.json").write_text(json.dumps(config | part))
        assert not controls(refused(["doctor", run], capsys, "config.json"))
