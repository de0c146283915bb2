"""The tests of a tier, their seconds, and the lines of the package that each of them runs."""

import hashlib
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutants.making import ROOT

TIERS = ("default", "whole")
EXPRESSIONS = {"default": "not whole and not slow", "whole": "whole and not slow"}  # of pytest's option -m
WRAPPERS = ("native", "native_averages", "native_learning", "native_packing")


class Tier(NamedTuple):
    """Seconds of each test by its name, and the names of the tests that run a line, by path and line."""

    seconds: dict[str, float]
    tests: dict[tuple[str, int], frozenset[str]]

    def covering(self, path: str, line: int) -> list[str]:
        """Tests that run ``line`` of ``path``, those of its own test file and quick ones first.

        C is run by those that run its callers in Python; a line outside all functions, such as a default, by those that
        run any line of the file, and by those that list what all modules say.
        """
        if not path.endswith(".py"):
            folder = str(Path(path).parent)
            found = set().union(*(self._of_file(f"{folder}/{name}.py") for name in WRAPPERS))
        else:
            listing = {test for test in self.seconds if "test_signatures" in test}
            found = set(self.tests.get((path, line), ())) or self._of_file(path) | listing
        stem, folder = Path(path).stem, Path(path).parent.name
        return sorted(
            found,
            key=lambda test: (
                f"test_{stem}" not in test,
                f"test_{folder}" not in test,
                self.seconds.get(test, 0.0),
                test,
            ),
        )

    def within(self, tests: list[str], seconds: float) -> list[str]:
        """The first of ``tests`` that take ``seconds`` together, and at least one."""
        total, kept = 0.0, []
        for test in tests:
            total += self.seconds.get(test, 0.0)
            if kept and total > seconds:
                break
            kept.append(test)
        return kept

    def _of_file(self, path: str) -> set[str]:
        return set().union(*(tests for (where, _), tests in self.tests.items() if where == path))


@cache
def digest(folder: str) -> str:
    """A digest of all code in ``folder`` of the checkout."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted((ROOT / folder).rglob("*.*")):
        if path.suffix in (".py", ".c", ".h"):
            found.update(path.read_bytes())
    return found.hexdigest()


def observe(tier: str, folder: Path) -> Tier:
    """Run the tests of ``tier`` once under coverage, or take up what ``folder`` has of the same sources and tests."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{tier}-{digest('src')}-{digest('tests')}"
    data, log = folder / f"{name}.coverage", folder / f"{name}.log"
    if not log.is_file():
        settings = folder / "coveragerc"
        settings.write_text(f"[run]\nsource_pkgs = grbm\ndata_file = {data}\n")
        command = ["-m", "pytest", "-q", "--durations=0", "-m", EXPRESSIONS[tier], "--cov=grbm", "--cov-context=test"]
        command += ["--cov-report=", f"--cov-config={settings}"]
        with (part := log.with_suffix(".part")).open("w") as out:
            done = subprocess.run([sys.executable, *command], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        if done.returncode:
            sys.exit(f"The tests of the tier {tier} fail without a mutant; see {part}.")
        part.replace(log)
    import coverage

    tests: dict[tuple[str, int], set[str]] = defaultdict(set)
    found = coverage.CoverageData(str(data))
    found.read()
    for name in found.measured_files():
        path = Path(name).relative_to(ROOT).as_posix()
        for line, contexts in found.contexts_by_lineno(name).items():
            tests[path, line] |= {context.partition("|")[0] for context in contexts if context}
    seconds: dict[str, float] = defaultdict(float)
    for took, test in re.findall(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*)$", log.read_text(), re.MULTILINE):
        seconds[test.strip()] += float(took)
    return Tier(dict(seconds), {key: frozenset(names) for key, names in tests.items()})
