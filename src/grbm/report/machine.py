"""Means of this machine to compute: which engine runs the chains, and what each precision means here."""

import os
import platform
import time
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch

from grbm.core.devices import memory
from grbm.core.options import Precision
from grbm.core.randomness import Philox
from grbm.model import GRBM
from grbm.samplers import Gibbs, run_chains
from grbm.samplers.engines import compiled, engine_name

N_VISIBLE, N_HIDDEN, N_CHAINS, N_STEPS = 784, 512, 256, 4  # of the walk that is timed
ROUNDS = 5

Products = Literal["float32", "bfloat16 vectors", "bfloat16 matrix units"]


class Gpu(NamedTuple):
    """A GPU that PyTorch sees."""

    name: str
    n_bytes: int
    engine: str  # "fused" or "pytorch"


class Machine(NamedTuple):
    """Facts of this machine, and measurements made on it."""

    processor: str
    n_threads: int
    n_bytes: int | None  # of memory
    engine: str  # of chains on the CPU: "native" or "pytorch"
    forced: bool  # by $GRBM_ENGINE
    fast: Products  # what ``precision="fast"`` multiplies on the CPU
    milliseconds: dict[str, float]  # of a Gibbs step, by precision
    gpus: list[Gpu]


def look() -> Machine:
    """Look at this machine; takes about a second."""
    gpus = []
    for k in range(torch.cuda.device_count()):
        of = torch.cuda.get_device_properties(k)
        gpus.append(Gpu(of.name, of.total_memory, engine_name(torch.device("cuda", k))))
    return Machine(
        processor=_processor(),
        n_threads=torch.get_num_threads(),
        n_bytes=memory(),
        engine=engine_name(torch.device("cpu")),
        forced=os.environ.get("GRBM_ENGINE", "auto") != "auto",
        fast=get_args(Products)[compiled.half()],
        milliseconds=_timed(),
        gpus=gpus,
    )


def lines(machine: Machine) -> list[str]:
    """Sentences for a person."""
    size = "" if machine.n_bytes is None else f", {machine.n_bytes / 2**30:.0f} GiB of memory"
    said = [f"Processor: {machine.processor}, {machine.n_threads} threads{size}."]
    why = " ($GRBM_ENGINE says so)" if machine.forced else ""
    if machine.engine == "native":
        said.append(f"Chains on the CPU run in native code{why}, compiled for this processor.")
    else:
        why = why or ": there is no C compiler that works (gcc or clang); with one they would be several times faster"
        said.append(f"Chains on the CPU run in PyTorch{why}.")
    meaning = {
        "float32": "float32 too, since "
        + ("this processor does not multiply bfloat16 faster" if machine.engine == "native" else "PyTorch runs them"),
        "bfloat16 vectors": "bfloat16 operands, by vector instructions (AVX512-BF16)",
        "bfloat16 matrix units": "bfloat16 operands, on matrix units (AMX)",
    }
    said.append(f"--precision highest and high are float32 there; fast is {meaning[machine.fast]}.")
    full, fast = machine.milliseconds["highest"], machine.milliseconds["fast"]
    told = f"A Gibbs step of {N_CHAINS} chains of {N_VISIBLE} x {N_HIDDEN} units takes {full:.1f} ms"
    if machine.fast != "float32":
        told += f", and {fast:.1f} ms with fast ({full / fast:.1f} times as fast)"
    said.append(f"{told}.")
    missing = " ($GRBM_ENGINE says so)" if machine.forced else ": Triton or a C compiler is missing"
    engines = {"fused": "in kernels of our own", "pytorch": f"in PyTorch{missing}"}
    for gpu in machine.gpus:
        said.append(f"GPU: {gpu.name}, {gpu.n_bytes / 2**30:.0f} GiB; chains run {engines[gpu.engine]}.")
        said.append("--precision highest is float32 there, high TF32, fast float16.")
    if not machine.gpus:
        said.append("PyTorch sees no GPU.")
    return said


def _timed() -> dict[str, float]:
    """Milliseconds of a step by precision: the least of some rounds, taken in turn."""
    energy, rng = GRBM(N_VISIBLE, N_HIDDEN).freeze(), Philox(1)
    v = Gibbs().noise(energy, N_CHAINS, rng)
    least: dict[str, float] = {}
    kinds: tuple[Precision, ...] = ("highest", "fast")
    for _ in range(ROUNDS):
        for precision in kinds:
            began = time.perf_counter()
            run_chains(energy.at(precision), Gibbs(), v, N_STEPS, rng)
            took = 1e3 * (time.perf_counter() - began) / N_STEPS
            least[precision] = min(took, least.get(precision, took))
    return least


def _processor() -> str:
    """Its name, as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
