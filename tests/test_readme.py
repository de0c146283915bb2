"""What the README says runs: its Python, its commands, its links."""

import re
import shlex
from pathlib import Path

import pytest

from grbm import cli
from grbm.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "docs/long-runs.md", "docs/likelihoods.md"])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, page, "exec"), {})


def test_commands_exist(capsys):
    """Every line of a shell block, in the README and all pages, that begins with grbm: command and flags are known."""
    commands = []
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            lines = (line.split("#")[0].split("&&")[-1].strip().removeprefix("uv run ") for line in block.splitlines())
            commands += [shlex.split(line)[1:] for line in lines if line.startswith("grbm ")]
    assert len(commands) >= 20
    for command in commands:
        if command[0] == "train" and len(command) > 1:
            assert command[1] in PRESETS
        if len(command) > 1:
            with pytest.raises(SystemExit) as stop:
                cli.main([*command, "--help"])
            assert stop.value.code == 0
    capsys.readouterr()


def test_local_links_resolve():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http", "mailto")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
