"""What `benchmarks.gpu` does on a GPU, part by part; each yields what it has found as soon as it has found it."""

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import published
from benchmarks.cd_step import BLOCKS, SIZES, STEP_SIZE, Size, prepared
from grbm import GRBM, Gibbs, GibbsLangevin, ModifiedCD, ParallelTempering, TrainState, fit, sample
from grbm.distributed import ALONE
from grbm.evaluate.features import Features
from grbm.evaluate.frechet import FeatureStatistics, frechet_estimate
from grbm.files import write_text
from grbm.model import Energy, Precision, base_for
from grbm.options import FitOptions
from grbm.randomness import Blocks
from grbm.runs import checkpoint
from grbm.runs.preparing import Prepared, prepare
from grbm.runs.presets import PRESETS
from grbm.samplers.chains import Sampler
from grbm.samplers.moves import MoveSampler
from grbm.samplers.sampling import reference

Found = dict[str, Any]
PRECISIONS: tuple[Precision, ...] = ("highest", "high", "fast")
MARKS = (30, 60, 120, 240, 480, 720, 960, 1200)  # seconds of training after which the model is judged


class Where(NamedTuple):
    """What every part is told."""

    out: Path
    data_dir: Path | None
    seconds: float  # until it is cut off
    device: torch.device


def timed(calls: dict[str, Callable[[], object]], device: torch.device, rounds: int = 5) -> dict[str, float]:
    """Milliseconds of each call, medians over rounds in turn.

    Two rounds before compile the kernels and capture the graphs.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for k in range(rounds + 2):
        for name, call in calls.items():
            wait(device)
            began = time.perf_counter()
            call()
            wait(device)
            if k > 1:
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(x) for name, x in times.items()}


def wait(device: torch.device) -> None:
    """Until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_of(call: Callable[[], object], device: torch.device) -> float:
    """The most GB that are held while it runs, when no walk before it has left buffers behind; 0 on a CPU."""
    from grbm.samplers.engines import cuda, cuda_ladder

    if device.type != "cuda":
        return 0.0
    for walker in (cuda.walker, cuda_ladder.walker):
        walker.cache_clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    call()
    wait(device)
    return torch.cuda.max_memory_allocated(device) / 1e9


def peaks(device: torch.device, n: int = 8192) -> dict[str, float]:
    """TFLOP/s of one large product in every precision: the limit that the others are held against."""
    from grbm.samplers.engines.cuda import set_for

    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    found = {}
    for precision in PRECISIONS:
        x, y = (a.half(), b.half()) if precision == "fast" else (a, b)
        with set_for(precision, device):
            milliseconds = timed({"product": lambda x=x, y=y: x @ y}, device, 3)["product"]
        found[precision] = 2 * n**3 / milliseconds / 1e9
    return found


def tests(where: Where) -> Iterator[Found]:
    """The tests of the CUDA kernels, on this GPU."""
    files = ["tests/test_fused.py", "tests/test_fused_ladder.py", "tests/test_checkpoint.py"]
    log = where.out / "tests.log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "pytest", "-v", "-n", "0", "--no-header", "-p", "no:cacheprovider", *files]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        while process.poll() is None:
            time.sleep(1)
            yield tests_seen(log.read_text())
    yield tests_seen(log.read_text()) | {"exit_status": process.returncode}


def tests_seen(log: str) -> Found:
    """How many tests have passed so far, and which have not."""
    failed = re.findall(r"^(tests/\S+::.+?) (?:FAILED|ERROR)", log, re.MULTILINE)
    return {"passed": len(re.findall(r" PASSED", log)), "skipped": len(re.findall(r" SKIPPED", log)), "failed": failed}


def steps(where: Where, sizes: list[Size] = SIZES, peak_size: int = 8192) -> Iterator[Found]:
    """A CD step of the published algorithm, of plain PyTorch and of the fused walk, and whole updates."""
    found: list[Found] = []
    peak = peaks(where.device, peak_size)
    yield {"peak_tflops": peak}
    for size in sizes:
        model, energy, v = prepared(size, where.device)
        sampler = GibbsLangevin(STEP_SIZE, n_inner=size.K)
        calls: dict[str, Callable[[], object]] = {
            "published": lambda e=energy, v=v, s=size: published.negative_phase(e, v, s.steps, s.K, STEP_SIZE),
            "pytorch": lambda e=energy, v=v, s=size, g=sampler: plain_walk(e, g, v, s.steps),
        }
        for precision in PRECISIONS:
            at = energy.at(precision)
            calls[f"fused, {precision}"] = lambda e=at, v=v, s=size, g=sampler: fused_walk(e, g, v, s.steps)
            calls[f"update, {precision}"] = updates(model, v, size, sampler, precision)
        entry: Found = {"size": size._asdict(), "per_step": {}}
        for name, whole in timed(calls, where.device).items():
            milliseconds = whole / size.steps
            tflops = 6 * size.N * size.M * size.C / milliseconds / 1e9
            entry["per_step"][name] = {"ms": milliseconds, "tflops": tflops}
        first = entry["per_step"]["published"]["ms"]
        for name, one in entry["per_step"].items():
            one["times_published"] = first / one["ms"]
            if (precision_of := name.rpartition(", ")[2]) in peak:
                one["share_of_peak"] = one["tflops"] / peak[precision_of]
        for name, call in calls.items():
            entry["per_step"][name]["gb"] = memory_of(call, where.device)
        found.append(entry)
        yield {"sizes": found}


def tiles(where: Where, sizes: list[Size] = SIZES, candidates: list[dict[str, int]] | None = None) -> Iterator[Found]:
    """The fastest tile of the fused product for each size, kept in the user's cache and in DIR/tiles.json."""
    from triton.runtime.errors import OutOfResources

    from grbm.samplers.engines import cuda, tile_table

    name = torch.cuda.get_device_name(where.device) if where.device.type == "cuda" else "interpreter"
    table: dict[tile_table.Product, tile_table.Tile] = {}
    found: list[Found] = []
    for size in sizes:
        product = tile_table.Product(size.C, size.N, size.M)
        default = dict(cuda.TILE)
        calls: dict[str, Callable[[], object]] = {}
        for tile in [default, *(candidates if candidates is not None else likely_tiles(size))]:
            call = hidden_draw(size, tile, where.device)
            try:
                call()
            except OutOfResources:  # more registers or shared memory than there are
                continue
            calls[json.dumps(tile)] = call
        times = timed(calls, where.device)
        best = min(times, key=times.__getitem__)
        table[product] = json.loads(best)
        before = times[json.dumps(default)]
        found.append({"size": size._asdict(), "tile": table[product], "ms": times[best], "default_ms": before})
        kept = tile_table.save(name, table)
        write_text(where.out / "tiles.json", kept.read_text())
        yield {"device": name, "sizes": found}


def likely_tiles(size: Size) -> list[dict[str, int]]:
    """Tiles worth trying: no wider than what is multiplied."""
    return [
        {"BM": bm, "BN": bn, "BK": bk, "num_warps": 8 if bm * bn > 64 * 128 else 4, "num_stages": stages}
        for bm in (32, 64, 128)
        for bn in (64, 128, 256)
        for bk in (32, 64)
        for stages in (3, 4)
        if bm <= max(32, size.C) and bn <= max(64, size.M) and bk <= max(32, size.N) and bm * bn <= 128 * 256
    ]


def hidden_draw(size: Size, tile: dict[str, int], device: torch.device) -> Callable[[], None]:
    """A draw of h from u with this tile, as the fused walk makes one a step."""
    from grbm.samplers.engines import cuda

    N, M, C = size[:3]
    w = cuda.Walker(cuda.Shape(C, N, M, 1, 1, None, False, False, False, None, 1.0, "fast", device))

    def draw() -> None:
        cuda.draw_hidden(
            "fast", w.operand[0], w.V, w.c, None, w.state, 0, w.h[0], w.p[0], w.parts, C, False, "", tile,
        )  # fmt: skip

    return draw


def samplers(where: Where, sizes: list[Size] | None = None, n_replicas: int = 14) -> Iterator[Found]:
    """Adjusted and tempered walks: fused against plain PyTorch."""
    found: list[Found] = []
    for size in sizes or [s._replace(steps=10) for s in SIZES[:4]]:
        _, energy, v = prepared(size, where.device)
        entry: Found = {"size": size._asdict(), "replicas": n_replicas}
        ways: dict[str, Sampler] = {
            "adjusted": GibbsLangevin(STEP_SIZE, n_inner=size.K, adjust_from=0),
            "tempered": ParallelTempering(n_replicas=n_replicas, sampler=Gibbs()),
        }
        for name, sampler in ways.items():
            calls: dict[str, Callable[[], object]] = {
                "pytorch": lambda e=energy, v=v, s=size, g=sampler: plain_walk(e, g, v, s.steps),
            }
            for precision in PRECISIONS:
                at = energy.at(precision)
                calls[precision] = lambda e=at, v=v, s=size, g=sampler: fused_walk(e, g, v, s.steps)
            entry[name] = {how: whole / size.steps for how, whole in timed(calls, where.device, 3).items()}
        found.append(entry)
        yield {"sizes": found}


def training(where: Where, marks: tuple[int, ...] = MARKS, **changes: Any) -> Iterator[Found]:
    """MNIST by 4,096 hidden units: how good its digits are, against seconds of training."""
    from benchmarks.speedrun import judge_of

    if where.data_dir is None:
        yield {"not_run": "it needs --data-dir with the MNIST files"}
        return
    began_all = time.perf_counter()
    config = PRESETS["mnist-medium"].config
    config = replace(
        config,
        model=replace(config.model, n_hidden=changes.get("n_hidden", 4096)),
        objective=replace(config.objective, n_chains=changes.get("batch_size", 512)),
        train=replace(config.train, n_updates=351_000, batch_size=changes.get("batch_size", 512)),
        precision="fast",
        data_dir=where.data_dir,
    )
    n_images = changes.get("n_images", 2000)
    judge, real = judge_of(where.data_dir)
    folder = where.out / "mnist-full"
    run = prepare(config, folder, ALONE, str(where.device), resume=False)
    saved = checkpoint.newest(folder, run.state, run="gpu")
    seconds, looks = 0.0, []
    if saved is not None:
        checkpoint.restore(run.state, saved)
        seconds, looks = saved.record["notes"]["seconds"], saved.record["notes"]["looks"]
    state, many = run.state, config.train.batch_size / len(run.data)
    learning = fit(state, run.data, run.objective, config.train, precision=config.precision)
    for mark in [m for m in marks if m > seconds]:
        spare = where.seconds - (time.perf_counter() - began_all) - changes.get("spare", 30)
        if spare <= 0:
            return
        until = min(mark, seconds + spare)
        while seconds < until:
            began = time.perf_counter()
            for _ in range(20):
                next(learning)
            wait(where.device)
            seconds += time.perf_counter() - began
        if seconds >= mark:
            score = judged(state.average or state.model, run, judge, real, n_images)
            epochs = state.update * many
            looks.append({"seconds": seconds, "updates": state.update, "epochs": epochs, "frechet": score})
        notes = {"seconds": seconds, "looks": looks}
        checkpoint.save(folder, state, run="gpu", notes=notes)
        checkpoint.prune(folder, 1, state.update, "gpu")
        yield notes | {"updates": state.update, "seconds_an_epoch": seconds / (state.update * many)}


def judged(model: GRBM, run: Prepared, judge: Features, real: FeatureStatistics, n_images: int) -> float:
    """The Fréchet distance of images drawn from noise."""
    how = run.config.sampling
    sampler = how.sampler.build(run.base, None)
    v = sample(model, sampler, n_chains=n_images, n_steps=how.n_steps, mean=how.mean, seed=1, precision="fast").v
    images = run.scale.inverse(v.cpu()).clamp(0, 1).view(-1, 1, 28, 28)
    return float(frechet_estimate(real, judge.extract(images)).mean)


def plain_walk(energy: Energy, sampler: Sampler, v: torch.Tensor, n_steps: int) -> object:
    """The definition, step by step."""
    return reference(energy, sampler, v, n_steps, Blocks(1, BLOCKS, device=v.device), burn_in=0)


def fused_walk(energy: Energy, sampler: Sampler, v: torch.Tensor, n_steps: int) -> object:
    """The walk as a GPU runs it, in the interpreter too."""
    from grbm.samplers.engines import cuda, cuda_ladder

    rng = Blocks(1, BLOCKS, device=v.device)
    if isinstance(sampler, MoveSampler):
        return cuda.run_moves(energy, sampler.moves(energy, n_steps), v, n_steps, rng, burn_in=0)
    assert isinstance(sampler, ParallelTempering)
    assert isinstance(sampler.sampler, MoveSampler)
    base = base_for(sampler.base, energy)
    ladder = energy.temper(sampler.betas().to(energy.W), base)
    replicas = v.expand(sampler.n_replicas, *v.shape)
    moves = sampler.sampler.moves(ladder, n_steps)
    return cuda_ladder.run_ladder(energy, base, ladder, moves, replicas, n_steps, rng, burn_in=0)


def updates(
    model: GRBM, v: torch.Tensor, size: Size, sampler: GibbsLangevin, precision: Precision
) -> Callable[[], object]:
    """The next of endless updates, of ``size.steps`` steps."""
    state = TrainState(model, torch.optim.SGD(model.parameters(), lr=1e-6))
    options = FitOptions(n_updates=10**9, batch_size=size.C, blocks=BLOCKS)
    made = fit(state, v, ModifiedCD(sampler, size.steps), options, precision=precision)
    return lambda: next(made)
