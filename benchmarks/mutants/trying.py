"""One mutant after another against the tests that run its line, in a copy of the checkout."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.mutants.covering import Tier
from benchmarks.mutants.making import ROOT, Mutant, mutated

FIRST = 25  # tests that are tried before all others, which kill most mutants
PATIENCE = 90.0  # seconds added to three times the tests' usual time; a mutant that takes longer counts as killed


class Copy:
    """A copy of what git tracks here, with a cache of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="grbm-mutants-"))
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name)

    def remove(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def try_out(
        self, mutant: Mutant, tiers: dict[str, Tier], seconds: float, before: str | None = None
    ) -> dict[str, object]:
        """Put ``mutant`` in, run the tests of one tier after the other until one fails, and take it out again.

        Of each tier only the nearest tests are run that take ``seconds`` together, and first the one that killed it
        ``before``.
        """
        path = self.folder / mutant.path
        whole = path.read_text(encoding="utf-8")
        after = mutated(mutant, whole)
        row = mutant._asdict() | {"change": _difference(whole, after), "killed_by": None, "tier": None, "tests": 0}
        path.write_text(after, encoding="utf-8")
        try:
            for name, tier in tiers.items():
                near = sorted(tier.covering(mutant.path, mutant.line), key=lambda test: test != before)
                tests = tier.within(near, seconds)
                row["tests"] += len(tests)
                for part in (tests[:FIRST], tests[FIRST:]):
                    if part and (found := self._failing(part, tier, mutant)):
                        return row | {"killed_by": found, "tier": name}
        finally:
            path.write_text(whole, encoding="utf-8")
            for made in (self.folder / "cache").glob("[!n]*"):  # a mutant may have written wrong features; native
                shutil.rmtree(made) if made.is_dir() else made.unlink()  # code lies under the digest of its sources
        return row

    def _failing(self, tests: list[str], tier: Tier, mutant: Mutant) -> str | None:
        """The first of ``tests`` that fails, or how it ended otherwise; None where all pass."""
        listed = self.folder / "chosen.json"
        listed.write_text(json.dumps(tests))
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        environment = os.environ | {
            "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}",
            "GRBM_CHOSEN_TESTS": str(listed),
            "GRBM_CACHE_DIR": str(self.folder / "cache"),
            "GRBM_DATA_DIR": os.environ.get("GRBM_DATA_DIR", str(ROOT.parent / "shared" / "data")),
            "HOME": str(self.folder / "home"),
            "OMP_NUM_THREADS": "1",
        }
        if mutant.operator == "C":
            environment["GRBM_ENGINE"] = "native"  # else the tests of code that does not compile would skip
        command = ["-m", "pytest", "-x", "-q", "-n", "0", "-m", "not slow", "-p", "benchmarks.mutants.chosen"]
        command += ["-p", "no:cacheprovider", f"--basetemp={self.folder / 'temporary'}", *files]
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=PATIENCE + 3 * sum(tier.seconds.get(test, 0.0) for test in tests))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "it hangs"
        if process.returncode in (0, 5):  # 5: no test was left
            return None
        lines = said.splitlines()
        named = [line.partition(" ")[2].partition(" - ")[0] for line in lines if line.startswith(("FAILED", "ERROR"))]
        return named[0] if named else f"pytest ended with {process.returncode}"


def _difference(before: str, after: str) -> str:
    """The first line that differs, as it was and as it is."""
    for one, other in zip(before.splitlines(), after.splitlines(), strict=False):
        if one != other:
            return f"{one.strip()}  ->  {other.strip()}"
    return "(nothing)"
