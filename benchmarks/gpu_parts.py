"""What `benchmarks.gpu` does on a GPU, part by part; each yields what it has found as soon as it has found it."""

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import at_size, published
from benchmarks.cd_step import BLOCKS, SIZES, STEP_SIZE, Size, endless_updates, measure, prepared
from grbm import Gibbs, GibbsLangevin, ParallelTempering
from grbm.core.options import Precision
from grbm.core.randomness import Blocks
from grbm.model import Energy, base_for
from grbm.samplers.chains import Sampler, Walk
from grbm.samplers.moves import MoveSampler
from grbm.samplers.sampling import step_by_step

Found = dict[str, Any]
PRECISIONS: tuple[Precision, ...] = ("highest", "high", "fast")
SPARE = 15  # seconds that a row takes beside its training
UPDATES = 8  # that are timed at a time, since the host runs ahead of a GPU


class Where(NamedTuple):
    """What every part is told."""

    out: Path
    data_dir: Path | None
    until: float  # when it is cut off, as time.time() has it
    device: torch.device
    learns_for: float = 50.0  # seconds of training of each row of the paper


Calls = dict[str, Callable[[], object]]


def timed(calls: Calls, device: torch.device, rounds: int = 5) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds of each call, medians over rounds in turn; and what went wrong with those that cannot be made.

    Two calls before compile the kernels and capture the graphs.
    """
    good: Calls = {}
    errors: dict[str, str] = {}
    for name, call in calls.items():
        try:
            call()
            call()
            wait(device)
            good[name] = call
        except Exception as error:  # of a compiler, a library, for want of memory: the others go on
            errors[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
    return measure(good, 1, rounds), errors


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_of(call: Callable[[], object], device: torch.device) -> float:
    """GB that it takes beyond what is there, its graph included, with no buffers of other walks; 0 on a CPU."""
    from grbm.samplers.engines import cuda_ladder, cuda_learning, cuda_walk

    if device.type != "cuda":
        return 0.0
    for kept in (cuda_walk.walker, cuda_ladder.walker, cuda_learning.learner):
        kept.cache_clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    for _ in range(3):
        call()
    wait(device)
    return (torch.cuda.max_memory_reserved(device) - before) / 1e9


def peaks(device: torch.device, n: int = 8192) -> dict[str, float]:
    """TFLOP/s of one large product in every precision: the limit that the others are held against."""
    from grbm.samplers.engines.cuda_buffers import set_for

    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    found = {}
    for precision in PRECISIONS:
        x, y = (a.half(), b.half()) if precision == "fast" else (a, b)
        with set_for(precision, device):
            milliseconds = timed({"product": lambda x=x, y=y: x @ y}, device, 3)[0]["product"]
        found[precision] = 2 * n**3 / milliseconds / 1e9
    return found


def tests(where: Where) -> Iterator[Found]:
    """The tests of the CUDA kernels, on this GPU."""
    files = ["tests/test_fused_ladder.py", "tests/test_fused.py"]
    files += ["tests/test_checkpoint.py::test_a_state_comes_back_to_the_gpu"]
    log = where.out / "tests.log"
    with log.open("w") as file:
        options = ["-v", "-o", "addopts=", "-m", "not slow", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
        if importlib.util.find_spec("xdist"):  # most of the time compiles kernels, on one core each
            options += ["-n", str(min(8, os.cpu_count() or 1))]
        command = [sys.executable, "-m", "pytest", *options, *files]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                time.sleep(1)
                yield tests_seen(log.read_text(errors="replace"))
        finally:
            process.kill()
    said = log.read_text(errors="replace")
    last = (said.strip().splitlines() or [""])[-1]
    yield tests_seen(said) | {"exit_status": process.returncode, "last_line": last}


def tests_seen(log: str) -> Found:
    """How many tests have passed so far, and which have not."""
    name, bad = r"tests/\S+::.+?", "(?:FAILED|ERROR)"
    pairs = re.findall(rf"^(?:({name}) {bad} *\[|\[gw\d+\] \[ *\d+%\] {bad} ({name})\s*$)", log, re.MULTILINE)
    failed = [alone or side_by_side for alone, side_by_side in pairs]
    return {"passed": len(re.findall(r" PASSED", log)), "skipped": len(re.findall(r" SKIPPED", log)), "failed": failed}


def steps(where: Where, sizes: list[Size] = SIZES, peak_size: int = 8192) -> Iterator[Found]:
    """A CD step of the published algorithm, of plain PyTorch and of the fused walk, and whole updates."""
    found: list[Found] = []
    peak = peaks(where.device, peak_size)
    yield {"peak_tflops": peak}
    for size in sizes:
        model, energy, v = prepared(size, where.device)
        sampler = GibbsLangevin(STEP_SIZE, n_inner=size.K)
        calls: Calls = {
            "published": lambda e=energy, v=v, s=size: published.negative_phase(e, v, s.steps, s.K, STEP_SIZE),
            "pytorch": lambda e=energy, v=v, s=size, g=sampler: plain_walk(e, g, v, s.steps),
        }
        for precision in PRECISIONS:
            at = energy.at(precision)
            calls[f"fused, {precision}"] = lambda e=at, v=v, s=size, g=sampler: fused_walk(e, g, v, s.steps)
            calls[f"update, {precision}"] = several(endless_updates(model, v, size, sampler, precision))
        times, errors = timed(calls, where.device)
        entry: Found = {"size": size._asdict(), "per_step": {}, "errors": errors}
        for name, whole in times.items():
            milliseconds = whole / size.steps / (UPDATES if name.startswith("update") else 1)
            tflops = 6 * size.N * size.M * size.C / milliseconds / 1e9
            entry["per_step"][name] = {"ms": milliseconds, "tflops": tflops}
        for name, one in entry["per_step"].items():
            if "published" in times:
                one["times_published"] = entry["per_step"]["published"]["ms"] / one["ms"]
            if (precision_of := name.rpartition(", ")[2]) in peak:
                one["share_of_peak"] = one["tflops"] / peak[precision_of]
            one["gb"] = memory_of(calls[name], where.device)
        found.append(entry)
        yield {"sizes": found}


def several(call: Callable[[], object]) -> Callable[[], None]:
    """`UPDATES` of it."""

    def all_of_them() -> None:
        for _ in range(UPDATES):
            call()

    return all_of_them


def samplers(where: Where, sizes: list[Size] | None = None, n_replicas: int = 14) -> Iterator[Found]:
    """Adjusted and tempered walks: fused against plain PyTorch."""
    found: list[Found] = []
    for size in sizes or [s._replace(steps=10) for s in SIZES[:4]]:
        _, energy, v = prepared(size, where.device)
        entry: Found = {"size": size._asdict(), "replicas": n_replicas, "errors": {}}
        ways: dict[str, Sampler] = {
            "adjusted": GibbsLangevin(STEP_SIZE, n_inner=size.K, adjust_from=0),
            "tempered": ParallelTempering(n_replicas=n_replicas, sampler=Gibbs()),
        }
        for name, sampler in ways.items():
            calls: Calls = {
                "pytorch": lambda e=energy, v=v, s=size, g=sampler: plain_walk(e, g, v, s.steps),
            }
            for precision in PRECISIONS:
                at = energy.at(precision)
                calls[precision] = lambda e=at, v=v, s=size, g=sampler: fused_walk(e, g, v, s.steps)
            times, errors = timed(calls, where.device, 3)
            entry[name] = {how: whole / size.steps for how, whole in times.items()}
            entry["errors"] |= {f"{name}, {how}": error for how, error in errors.items()}
        found.append(entry)
        yield {"sizes": found}


def training(where: Where, n_hidden: int | None = None, n_updates: int | None = None) -> Iterator[Found]:
    """MNIST by our recipe and the paper's rows in their own size, one after the other, and their scores."""
    if where.data_dir is None:
        yield {"not_run": "it needs --data-dir with the MNIST files"}
        return
    rows: dict[str, Found] = {}
    for name in (at_size.OURS, *at_size.ROWS):
        needed = SPARE + (where.learns_for if name in at_size.ROWS else 0)
        if not (where.out / f"{name}.json").exists() and time.time() + needed > where.until:
            return
        how = {"seconds": where.learns_for, "n_updates": n_updates, "n_hidden": n_hidden}
        rows[name] = dict(at_size.make(name, where.out, where.data_dir, str(where.device), **how))  # type: ignore[arg-type]
        yield {"rows": rows}
    for found in at_size.score(where.out, where.data_dir, None, list(rows), str(where.device)):
        for name, scores in found.items():
            if name in rows:
                rows[name] |= scores
        yield {"rows": rows}
    yield {"done": True}


def plain_walk(energy: Energy, sampler: Sampler, v: torch.Tensor, n_steps: int) -> object:
    """The definition, step by step."""
    return step_by_step(energy, sampler, Walk(v, n_steps, 0), Blocks(1, BLOCKS, device=v.device))


def fused_walk(energy: Energy, sampler: Sampler, v: torch.Tensor, n_steps: int) -> object:
    """The walk as a GPU runs it, in the interpreter too."""
    from grbm.samplers.engines.cuda import Cuda

    rng, engine = Blocks(1, BLOCKS, device=v.device), Cuda()
    if isinstance(sampler, MoveSampler):
        return engine.run(energy, sampler.moves(energy, n_steps), Walk(v, n_steps, burn_in=0), rng)
    assert isinstance(sampler, ParallelTempering)
    assert isinstance(sampler.sampler, MoveSampler)
    ladder = energy.temper(sampler.betas().to(energy.W), base_for(sampler.base, energy))
    replicas = v.expand(sampler.n_replicas, *v.shape)
    moves = sampler.sampler.moves(ladder, n_steps)
    return engine.run_ladder(ladder, moves, Walk(replicas, n_steps, burn_in=0), rng)
