"""Does another version of the program learn the same numbers, bit for bit?

    python -m benchmarks.same_numbers OTHER_CHECKOUT [--only digits ...]

Each case is trained for 200 updates by both versions: by native code and by PyTorch, and some by two processes. The
weights, their average, the persistent chains and the optimiser in the last checkpoint must be equal, and all metrics
but those of time. Run it before and after a change that should change nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
OF_TIME = ("seconds",)
FILES = ("model.safetensors", "model_raw.safetensors", "data.safetensors")
LANGEVIN = "--sampler.name langevin --sampler.step-size 0.1 --sampler.per-unit True"
ADJUSTED = "--sampler.name gibbs-langevin --sampler.step-size 0.05 --sampler.n-inner 5 --sampler.adjust-from 0"
ANNEALED = "--sampler.name annealed --objective.name modified-cd --objective.n-steps 20 --objective.burn-in 19"
CASES = {
    "digits": "digits",
    "isotropic": "isotropic",
    "tempered": "isotropic --sampler.name parallel-tempering --objective.n-steps 10",
    "langevin": f"paper-isotropic {LANGEVIN} --objective.n-steps 20 --train.variance-rate 0.1",
    "adjusted": f"digits {ADJUSTED}",
    "annealed": f"isotropic {ANNEALED}",
}
IN_TWO = ("digits", "isotropic", "adjusted")


def train(checkout: Path, arguments: str, folder: Path, *, engine: str, processes: int) -> None:
    """200 updates by the program in ``checkout``; each process has one thread."""
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*start, "-m", "grbm", "train", *arguments.split(), "--train.n-updates", "200", "--no-figures"]
    command += ["--log.no-tensorboard", "--device", "cpu", "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "GRBM_ENGINE": engine, "OMP_NUM_THREADS": "1"}
    where = [sys.executable, "-c", "import grbm; print(grbm.__file__)"]
    found = subprocess.run(where, cwd=folder.parent, env=environment, check=True, capture_output=True, text=True)
    if not Path(found.stdout.strip()).is_relative_to(checkout):
        sys.exit(f"{found.stdout.strip()} would be run in place of the program in {checkout}.")
    done = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")


def numbers(folder: Path) -> dict[str, Any]:
    """All that a run learned, by name."""
    found: dict[str, Any] = {}
    paths = [folder / name for name in FILES] + sorted((folder / "checkpoints").glob("*/state.safetensors"))
    for path in paths:
        if path.is_file():
            found |= {f"{path.relative_to(folder)}: {name}": x.tobytes() for name, x in load_file(path).items()}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        found |= {f"update {record['update']}: {k}": x for k, x in record.items() if k not in OF_TIME}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the root of another checkout")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    differing = 0
    for name in options.only:
        ways = [("native", 1), ("pytorch", 1), *([("native", 2)] if name in IN_TWO else [])]
        for engine, processes in ways:
            with tempfile.TemporaryDirectory() as folder:
                runs = []
                for checkout in (options.other.resolve(), ROOT):
                    runs.append(Path(folder) / f"run{len(runs)}")
                    train(checkout, CASES[name], runs[-1], engine=engine, processes=processes)
                before, after = (numbers(run) for run in runs)
            wrong = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
            differing += bool(wrong)
            told = f"{len(wrong)} differ, such as {sorted(wrong)[0]}" if wrong else "the same"
            print(f"{name:<10} {engine:<8} {processes} process(es): {len(before)} numbers, {told}", flush=True)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
