"""Write appendix.md: every log in logs/, whole, under its title. `python docs/lab/make_appendix.py`

A log begins with three lines, its title, command and machine, and goes on after an empty one with what was printed.
"""

from pathlib import Path
from typing import NamedTuple

LAB = Path(__file__).resolve().parent
HEAD = """# Appendix: logs

What the commands behind [the experiments](paper.md) printed, whole. This page is made by `docs/lab/make_appendix.py`
from `docs/lab/logs`.
"""


class Log(NamedTuple):
    """What a command printed, and where."""

    title: str
    command: str
    machine: str
    text: str


def read(path: Path) -> Log:
    """A log; raises ValueError where its head is not as said above."""
    head, _, text = path.read_text(encoding="utf-8").partition("\n\n")
    lines = head.splitlines()
    if len(lines) != 3 or not text.strip():
        raise ValueError(f"{path} does not begin with its title, its command, its machine and an empty line.")
    return Log(*lines, text.rstrip())


def page() -> str:
    """The appendix."""
    parts = [HEAD]
    for path in sorted((LAB / "logs").glob("*.txt")):
        log = read(path)
        parts.append(f"## {log.title}\n\n`{log.command}`  \n{log.machine}\n\n```text\n{log.text}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (LAB / "appendix.md").write_text(page(), encoding="utf-8")
