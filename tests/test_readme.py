"""What the README says runs: its Python, its commands, its links."""

import re
import shlex
from pathlib import Path

import pytest

from grbm import cli
from grbm.cli.training import HELP_ALL
from grbm.runs.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES = [page for page in TEXTS if python_blocks(page)]
QUICK = ("README.md", "CONTRIBUTING.md")


@pytest.mark.usefixtures("few_looks")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=() if page.name in QUICK else pytest.mark.whole) for page in PAGES],
)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """One after another, as a reader would: what a block defines the next ones know."""
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {"__name__": "__main__"}
    for block in python_blocks(page):
        exec(compile(block, page.name, "exec"), known)


def test_pages_with_code_are_found():
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "index.md",
        "model.md",
        "samplers.md",
        "interchange.md",
        "migration.md",
    } <= {p.name for p in PAGES}


def test_commands_exist(tmp_path, monkeypatch, capsys):
    """Every line of a shell block, in the README and all pages, that begins with grbm: command and flags are known."""
    commands = []
    for page in TEXTS:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            lines = (line.split("#")[0].split("&&")[-1].strip().removeprefix("uv run ") for line in block.splitlines())
            commands += [shlex.split(line)[1:] for line in lines if line.startswith("grbm ")]
    assert len(commands) >= 20
    monkeypatch.chdir(tmp_path)
    for command in commands:
        if command[0] == "train" and len(command) > 1:
            assert command[1] in PRESETS or command[1].endswith(".csv")
            if command[1] not in PRESETS:  # a file of the reader's own
                Path(command[1]).write_text("a,b\n1,2\n3,4\n")
        if len(command) > 1:
            with pytest.raises(SystemExit) as stop:
                cli.main([*command, HELP_ALL if command[0] == "train" else "--help"])
            assert stop.value.code == 0
    capsys.readouterr()


def test_local_links_resolve():
    for page in TEXTS:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http", "mailto", "auto_")):  # those are made; test_docs.py
                assert (page.parent / target).exists(), f"{page.name}: {target}"
