"""Measure the tests by mutants: the share of small faults that each tier kills, and those that survive.

    uv run --group mutants python -m benchmarks.mutants                 # 160 mutants of all groups, hours
    uv run --group mutants python -m benchmarks.mutants moments         # of one group
    uv run --group mutants python -m benchmarks.mutants src/grbm/learning/sgd.py --n 20

The tests run once under coverage first, and each mutant is then tried against the nearest tests that run its line.
The shares are lower bounds: farther tests are left out, coverage does not see tests in processes of their own, and a
line that runs in a fixture of several tests counts for the first of them. The results are in
build/mutants/results.jsonl, and the same command takes it up. After a change of the tests a mutant is first tried
against the test that killed it before.
"""

import argparse
import json
import queue
import threading
from pathlib import Path

from benchmarks.mutants.covering import TIERS, digest, observe
from benchmarks.mutants.making import ROOT, Mutant, groups, sample
from benchmarks.mutants.trying import Copy


def main() -> None:
    """Draw the mutants, try them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"groups ({', '.join(groups())}) or source files; default all groups")
    parser.add_argument("--n", type=int, default=160, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=list(TIERS), help="tiers of tests, in order")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of tests of each tier for a mutant")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants", help="folder of what was found")
    options = parser.parse_args()
    chosen = {name: groups()[name] if name in groups() else [Path(name).resolve()] for name in options.what}
    mutants = sample(options.n, options.seed, chosen or groups())
    tiers = {name: observe(name, options.out) for name in options.tiers}
    results = options.out / "results.jsonl"
    known = {tuple(row["mutant"]): row for row in _read(results) if row["sources"] == digest("src")}
    now = {"sources": digest("src"), "tests_were": digest("tests"), "tiers": options.tiers}
    waiting: queue.Queue[Mutant] = queue.Queue()
    for mutant in mutants:
        row = known.get(tuple(mutant), {})
        if any(row.get(name) != value for name, value in now.items()):
            waiting.put(mutant)
    writing = threading.Lock()

    def work() -> None:
        copy = Copy()
        try:
            while True:
                try:
                    mutant = waiting.get_nowait()
                except queue.Empty:
                    return
                row = (
                    copy.try_out(mutant, tiers, options.seconds, known.get(tuple(mutant), {}).get("killed_by"))
                    | {"mutant": list(mutant)}
                    | now
                )
                with writing:
                    known[tuple(mutant)] = row
                    with results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(f"{row['tier'] or 'SURVIVED':9} {row['path']}:{row['line']}  {row['change']}", flush=True)
        finally:
            copy.remove()

    workers = [threading.Thread(target=work, daemon=True) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        for worker in workers:
            worker.join(1.0)
    print(table([known[tuple(mutant)] for mutant in mutants if tuple(mutant) in known], options.tiers))


def table(rows: list[dict], tiers: list[str]) -> str:
    """Shares of the mutants of each group that are killed by the tiers so far, and the survivors."""
    lines = ["", f"{'group':<12}{'mutants':>8}" + "".join(f"{name:>10}" for name in tiers)]
    for group in [*dict.fromkeys(row["group"] for row in rows), "all"]:
        own = [row for row in rows if group in (row["group"], "all")]
        line = f"{group:<12}{len(own):>8}"
        for k in range(len(tiers)):
            line += f"{sum(row['tier'] in tiers[: k + 1] for row in own) / len(own):>10.0%}"
        lines.append(line)
    lines += ["", "Survivors:"]
    lines += [f"  {row['path']}:{row['line']}  {row['change']}" for row in rows if row["tier"] is None]
    return "\n".join(lines)


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


if __name__ == "__main__":
    main()
