"""Kill training with SIGKILL at random moments, resume it, and compare every number with an uninterrupted run.

    uv run python -m benchmarks.kill_and_resume --runs 50

Each run writes a checkpoint after every update, so that many kills fall into the writing of one. What must come out
equal, bit for bit: weights, their average, metrics (but for the seconds), and the last checkpoint with its persistent
chains and optimiser.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import redirect_stdout
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import safetensors.torch

from grbm import cli, runs

UPDATES = 80
SETTINGS = [
    "--train.n-updates",
    str(UPDATES),
    "--model.n-hidden",
    "128",
    "--objective.n-steps",
    "5",
    "--train.optimizer",
    "adam",
    "--train.spectral-norm",
    "None",
]
SETTINGS += ["--train.learning-rate", "0.003", "--checkpoint.updates", "1", "--no-figures", "--log.no-tensorboard"]


os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes to come: small matrices, and maybe busy cores
# Processes are forked from one that has imported everything, so that a kill finds training and not imports.
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["grbm.runs.training", "grbm.cli", "grbm.runs.presets", "sklearn.datasets", "torch._dynamo"]
)


def start(folder: Path) -> BaseProcess:
    process = CONTEXT.Process(target=_train, args=(folder,))
    process.start()
    return process


def _train(folder: Path) -> None:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        sys.exit(cli.main(["train", "digits", *SETTINGS, "--out", str(folder), "--resume"]))


def finish(process: BaseProcess) -> None:
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"a run failed with code {process.exitcode}")


def everything(folder: Path) -> dict[str, Any]:
    """All numbers of a finished run, as bytes or JSON."""
    found: dict[str, Any] = {}
    last = max((folder / runs.CHECKPOINTS).glob("update-*"))
    for path in (folder / runs.WEIGHTS, folder / runs.RAW_WEIGHTS, folder / runs.DATA, last / "state.safetensors"):
        for name, tensor in safetensors.torch.load_file(path).items():
            found[f"{path.name} {name}"] = tensor.numpy().tobytes()
    found["metrics"] = [{k: v for k, v in line.items() if k != "seconds"} for line in runs.read_metrics(folder)]
    record = json.loads((last / "state.json").read_text())
    found["checkpoint"] = {k: v for k, v in record.items() if k != "checksum"}
    del found["checkpoint"]["callbacks"]["log"]["seconds"]
    return found


def reached(folder: Path) -> int:
    return max((int(path.name[-8:]) for path in folder.glob("checkpoints/update-*")), default=0)


def kill_until_finished(folder: Path, rng: random.Random, kills: int) -> tuple[int, int]:
    """Kills that found the run alive, and how many of them left half a checkpoint."""
    landed = torn = 0
    for k in range(kills):
        process = start(folder)
        # after a random update; the first kill well before the end, a later one perhaps while the run starts
        update = rng.randrange(1, UPDATES - 20) if k == 0 else reached(folder) + rng.randrange(UPDATES // 2)
        while reached(folder) < update and process.is_alive():
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        process.join()
        landed += process.exitcode == -signal.SIGKILL
        torn += any(folder.glob("checkpoints/.partial-*"))
    finish(start(folder))
    return landed, torn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--kills", type=int, default=2, help="per run")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        finish(start(Path(name) / "whole"))
        expected = everything(Path(name) / "whole")
        equal = landed = torn = 0
        for k in range(options.runs):
            folder = Path(name) / str(k)
            killed, half = kill_until_finished(folder, rng, options.kills)
            same = everything(folder) == expected
            equal, landed, torn = equal + same, landed + killed, torn + half
            print(f"run {k + 1}: {killed} kills, {'equal' if same else 'DIFFERENT'}", flush=True)
    print(f"{equal} of {options.runs} bit-identical; {landed} kills, {torn} of them in the middle of a checkpoint")
    sys.exit(equal != options.runs)


if __name__ == "__main__":
    main()
