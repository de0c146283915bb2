"""A GPU's first ten minutes: tests, speed, the paper's rows in their own size, and other samplers.

    uv run python -m benchmarks.gpu --out DIR --data-dir DATA                # all of it: ten minutes
    uv run python -m benchmarks.gpu --out DIR --data-dir DATA --seconds 570  # what can be done in that; go on later

Parts run in the order of `PARTS`, each in a process of its own and within its limit, and what one has found is kept
when it is cut off. The same command goes on with what is left. DIR/gpu.json holds every number, DIR/gpu.md is to be
read. Without a GPU it says so and exits with 0.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu_parts import Found, Where, samplers, steps, tests, training
from grbm.core.files import write_text


class Part(NamedTuple):
    """A generator of what it finds, and its limit."""

    run: Callable[[Where], Iterator[Found]]
    seconds: float  # at most


PARTS = {
    "tests": Part(tests, 90),
    "steps": Part(steps, 60),
    "training": Part(training, 420),
    "samplers": Part(samplers, 50),
}


def run_part(name: str, where: Where) -> None:
    """One part, in this process; what it has found so far is always on the disk."""
    target = where.out / f"{name}.json"
    found: Found = read(target) if name == "training" else {}
    for old in ("stopped", "not_run", "finished"):
        found.pop(old, None)
    began, before = time.perf_counter(), found.get("part_seconds", 0.0)
    for more in PARTS[name].run(where):
        found |= more | {"part_seconds": before + time.perf_counter() - began}
        write_text(target, json.dumps(found, indent=1) + "\n")
    found["finished"] = name != "training" or found.get("done", False)
    write_text(target, json.dumps(found, indent=1) + "\n")


def read(path: Path) -> Found:
    """What a part has left; nothing where there is nothing to be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def run_all(options: argparse.Namespace, device: torch.device) -> None:
    """Each part in a process of its own, killed at its limit: none can take another's time, or break its device."""
    ends = time.monotonic() + options.seconds
    for name, part in PARTS.items():
        target = options.out / f"{name}.json"
        left = min(part.seconds, ends - time.monotonic() - 5)
        if (options.only and name not in options.only) or read(target).get("finished"):
            continue
        if left < min(20, part.seconds):
            print(f"{name}: no time left; the same command goes on here", flush=True)
            continue
        print(f"{name}: at most {left:.0f} s", flush=True)
        command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(options.out), "--part", name]
        command += ["--until", str(time.time() + left), "--device", str(device)]
        command += ["--training-seconds", str(options.training_seconds)]
        command += ["--data-dir", str(options.data_dir)] if options.data_dir else []
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
        try:
            _, errors = process.communicate(timeout=left)
            status = "" if process.returncode == 0 else (errors.strip().splitlines() or ["it was killed"])[-1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            status = f"cut off after {left:.0f} s"
        found = read(target)
        found |= {"stopped": status} if status else {}
        found["finished"] = found.get("finished", False) or (bool(status) and name != "training")
        write_text(target, json.dumps(found, indent=1) + "\n")
        summarise(options.out, device)
        print(f"  {status or 'done'}", flush=True)
    summarise(options.out, device)
    print(f"{options.out / 'gpu.md'} and gpu.json hold what was found.")


def summarise(out: Path, device: torch.device) -> None:
    """gpu.json and gpu.md from what the parts have left."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU: Triton's interpreter"
    found: Found = {"device": name, "torch": torch.__version__}
    found |= {part: read(out / f"{part}.json") for part in PARTS}
    write_text(out / "gpu.json", json.dumps(found, indent=1) + "\n")
    write_text(out / "gpu.md", page(found))


def page(found: Found) -> str:
    """gpu.md: a table a part, and what was cut off."""
    lines = [f"# {found['device']}, PyTorch {found['torch']}", ""]
    part = {name: found.get(name, {}) for name in PARTS}
    for name, one in part.items():
        said = one.get("stopped") or one.get("not_run") or ("" if one.get("finished") else "not finished")
        lines += [f"- {name}: {one.get('part_seconds', 0):.0f} s" + (f"; {said}" if said else "")]
    tested = part["tests"]
    if "passed" in tested:
        failed = "".join(f"\n- {name}" for name in tested["failed"])
        lines += ["", "## Tests", ""]
        ended = tested.get("exit_status")
        bad = f" pytest ended with {ended}: {tested['last_line']}" if ended else ""
        lines += [
            f"{tested['passed']} passed, {len(tested['failed'])} failed, {tested['skipped']} skipped.{bad}{failed}"
        ]
    if peak := part["steps"].get("peak_tflops"):
        most = ", ".join(f"{name} {x:.1f}" for name, x in peak.items())
        said = "Updates have as many steps as the walks."
        lines += ["", "## A CD step", "", f"Peak, by one large product: {most} TFLOP/s. {said}"]
    for one in part["steps"].get("sizes", []):
        lines += ["", said_of(one["size"]), "", "| | ms a step | times published | TFLOP/s | share of peak | GB |"]
        lines += ["|---|---|---|---|---|---|"]
        for name, row in one["per_step"].items():
            share = f"{row['share_of_peak']:.0%}" if "share_of_peak" in row else ""
            times, memory = f"{row.get('times_published', math.nan):.1f}", f"{row['gb']:.2f}"
            lines += [f"| {name} | {row['ms']:.4f} | {times} | {row['tflops']:.1f} | {share} | {memory} |"]
        lines += failures(one)
    if sizes := part["samplers"].get("sizes"):
        lines += ["", "## Adjusted and tempered walks, ms a step", "", "| | PyTorch | highest | high | fast |"]
        lines += ["|---|---|---|---|---|"]
        for one in sizes:
            for name in ("adjusted", "tempered"):
                times = " | ".join(
                    f"{one[name].get(how, math.nan):.4f}" for how in ("pytorch", "highest", "high", "fast")
                )
                with_replicas = f", {one['replicas']} replicas" if name == "tempered" else ""
                lines += [f"| {said_of(one['size'])}, {name}{with_replicas} | {times} |"]
        for one in sizes:
            lines += failures(one)
    if rows := part["training"].get("rows"):
        lines += ["", "## MNIST, the paper's rows in their size, and our recipe", ""]
        lines += ["| | seconds | updates | epochs | Fréchet, means | states v |", "|---|---|---|---|---|---|"]
        for name, row in rows.items():
            means, states = (f"{row[kind]['Fréchet']:.1f}" if kind in row else "" for kind in ("means", "states"))
            took = f"{row['seconds']:.0f} | {row['updates']} | {row['epochs']:.1f}"
            lines += [f"| {name} | {took} | {means} | {states} |"]
    return "\n".join(lines) + "\n"


def failures(one: Found) -> list[str]:
    """What could not be run, and why."""
    lines = [f"- {said_of(one['size'])}, {name}: {error}" for name, error in one["errors"].items()]
    return ["", *lines] if lines else []


def said_of(size: dict[str, int]) -> str:
    """A size in words."""
    return f"{size['N']} x {size['M']}, {size['C']} chains, {size['steps']} steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, help="where the MNIST files are, for the last part")
    parser.add_argument("--seconds", type=float, default=620.0, help="of this call")
    parser.add_argument("--training-seconds", type=float, default=50.0, help="of each row of the paper")
    parser.add_argument("--only", nargs="+", choices=PARTS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here that PyTorch can use: nothing was measured.")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part:
        where = Where(options.out, options.data_dir, options.until, device, options.training_seconds)
        run_part(options.part, where)
    else:
        run_all(options, device)


if __name__ == "__main__":
    main()
