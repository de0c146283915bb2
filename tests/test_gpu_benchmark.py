"""`benchmarks.gpu` without a GPU: every part at a tiny size in Triton's interpreter, cut off and taken up again."""

import gc
import json
import subprocess
import sys
import time
import weakref

import pytest
import torch

pytest.importorskip("grbm.samplers.engines.cuda", reason="Triton is not installed")

from benchmarks import at_size, gpu, gpu_parts
from benchmarks.cd_step import Size
from grbm.core.files import read_tensors
from grbm.samplers.engines import cuda_buffers, cuda_given, cuda_ladder, cuda_walk
from tests.helpers import mnist_folder

CPU = torch.device("cpu")
TINY = Size(3, 5, 4, 2, 3)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))


def where(tmp_path, seconds: float = 100.0) -> gpu_parts.Where:
    return gpu_parts.Where(tmp_path, None, time.time() + seconds, CPU)


@pytest.mark.whole
def test_without_a_gpu_it_says_so(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "out")]
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "no GPU" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.whole
def test_every_part_finds_what_the_page_shows(tmp_path):
    found = {"device": "interpreter", "torch": torch.__version__}
    found["tests"] = gpu_parts.tests_seen(
        "tests/test_fused.py::test_a[x y] PASSED [ 1%]\ntests/test_fused.py::test_b[1-2] FAILED [ 2%]\n"
        "tests/test_fused.py::test_c SKIPPED (no) [ 3%]\n"
        "[gw0] [  4%] PASSED tests/test_fused.py::test_d \n[gw1] [ 10%] FAILED tests/test_fused.py::test_e[x y] \n"
    )
    failed = ["tests/test_fused.py::test_b[1-2]", "tests/test_fused.py::test_e[x y]"]
    assert found["tests"] == {"passed": 2, "skipped": 1, "failed": failed}
    found["steps"] = dict(pair for more in gpu_parts.steps(where(tmp_path), [TINY], 16) for pair in more.items())
    per_step = found["steps"]["sizes"][0]["per_step"]
    kinds = [f"{what}, {p}" for p in gpu_parts.PRECISIONS for what in ("fused", "update")]
    assert set(per_step) == {"published", "pytorch", *kinds}
    for one in per_step.values():
        assert one["tflops"] == pytest.approx(6 * 3 * 5 * 4 / one["ms"] / 1e9)
        assert one["times_published"] == pytest.approx(per_step["published"]["ms"] / one["ms"])
    fused = per_step["fused, fast"]
    assert fused["share_of_peak"] == pytest.approx(fused["tflops"] / found["steps"]["peak_tflops"]["fast"])
    found["samplers"] = next(gpu_parts.samplers(where(tmp_path), [TINY], 2))
    assert set(found["samplers"]["sizes"][0]["tempered"]) == {"pytorch", *gpu_parts.PRECISIONS}
    row = {"seconds": 60.0, "updates": 900, "epochs": 7.5, "means": {"Fréchet": 21.5}, "states": {"Fréchet": 30.0}}
    found["training"] = {"rows": {"mnist-large": row}}
    page = gpu.page(found)
    for said in ("2 passed, 2 failed", "- tests/test_fused.py::test_b[1-2]", "| fused, fast |"):
        assert said in page
    for said in ("3 x 5, 4 chains, 2 steps, tempered, 2 replicas", "| mnist-large | 60 | 900 | 7.5 | 21.5 | 30.0 |"):
        assert said in page


def test_buffers_are_freed_when_a_walker_is_forgotten():
    """Without waiting for the garbage collector, which does not see how much memory of a GPU they hold."""
    gc.disable()
    try:
        for module, shape in (
            (cuda_walk, cuda_buffers.Shape(1, 2, 3, 4, 1, 1, None, False, False, "highest", CPU)),
            (cuda_ladder, cuda_buffers.Shape(2, 2, 3, 4, 1, 1, None, False, False, "highest", CPU)),
            (cuda_given, cuda_given.Shape(2, 3, 4, 1, None, False, True, "highest", CPU)),
        ):
            walker = module.walker(shape)
            walker.replay(walker.run)
            gone = weakref.ref(walker)
            del walker
            module.walker.cache_clear()
            assert gone() is None
    finally:
        gc.enable()


def test_rows_at_size_are_trained_scored_and_not_made_again(monkeypatch, tmp_path):
    """Our recipe and the paper's five samplers, tiny; what was made is taken up, and without time nothing begins."""
    mnist_folder(tmp_path, compress=True)
    scores = {"means": {"Fréchet": 1.0}, "states": {"Fréchet": 2.0}}
    monkeypatch.setattr(at_size, "score", lambda out, data, weights, names, device: [{names[0]: scores}])
    monkeypatch.setattr(at_size, "N_IMAGES", 4)
    monkeypatch.setattr(at_size, "rate_of", lambda run: 0.01)
    here = where(tmp_path, 1000.0)._replace(data_dir=tmp_path)
    assert list(gpu_parts.training(here._replace(until=time.time()))) == []
    found = {}
    for more in gpu_parts.training(here, n_hidden=6, n_updates=2):
        found |= more
    assert found["done"]
    assert list(found["rows"]) == [at_size.OURS, *at_size.ROWS]
    assert all(row["updates"] == 2 for row in found["rows"].values())
    assert found["rows"][at_size.OURS]["states"] == {"Fréchet": 2.0}
    drawn = read_tensors(tmp_path / "table1-langevin.samples.safetensors")
    assert {kind: (x.shape, x.dtype) for kind, x in drawn.items()} == dict.fromkeys(
        ("states", "means"), ((4, 784), torch.uint8)
    )
    monkeypatch.setattr(at_size, "begin", lambda *given: pytest.fail("it is there"))
    *_, again = gpu_parts.training(here._replace(until=time.time() + 1), n_hidden=6, n_updates=2)
    assert again == {"done": True}


def test_balls_cover_all_images():
    corners = torch.tensor([[0.0, 0.0], [0.5, 0.0], [9.0, 0.0], [9.5, 0.0], [20.0, 0.0]])
    assert at_size.balls(corners, radius=1.0) == 3
    assert at_size.balls(corners, radius=0.1) == 5
    assert at_size.balls(corners, radius=100.0) == 1


def test_a_part_in_its_own_process_takes_up_what_was_found(monkeypatch, tmp_path):
    """An old word of being stopped goes, seconds add up, and training is finished only when it is done."""
    target = tmp_path / "training.json"
    target.write_text(json.dumps({"stopped": "cut off", "part_seconds": 100.0, "finished": True, "rows": [1]}))
    part = gpu.PARTS["training"]
    monkeypatch.setitem(gpu.PARTS, "training", part._replace(run=lambda where: iter([{"seconds": 3.0}])))
    gpu.run_part("training", where(tmp_path))
    found = json.loads(target.read_text())
    assert found["part_seconds"] >= 100
    assert "stopped" not in found
    assert not found["finished"]
    assert found["rows"] == [1]
    monkeypatch.setitem(gpu.PARTS, "training", part._replace(run=lambda where: iter([{"done": True}])))
    gpu.run_part("training", where(tmp_path))
    assert json.loads(target.read_text())["finished"]
    target.write_text("[1]")
    assert gpu.read(target) == {}


def test_a_part_that_is_cut_off_or_breaks_keeps_what_it_found(monkeypatch, tmp_path):
    """The parent's side: what is done is not done again, what was cut off says so, the page is always there."""
    calls = []

    class Process:
        def __init__(self, command, **options):
            self.name, self.pid = command[command.index("--part") + 1], -1
            calls.append(self.name)
            self.returncode = 1 if self.name == "steps" else 0

        def communicate(self, timeout=None):
            if self.name == "samplers" and timeout is not None:
                gpu.write_text(tmp_path / "samplers.json", json.dumps({"sizes": []}))
                raise subprocess.TimeoutExpired("samplers", timeout)
            if self.name == "tests":
                gpu.write_text(
                    tmp_path / "tests.json", json.dumps({"passed": 3, "failed": [], "skipped": 0, "finished": 1})
                )
            return "", "Traceback\nRuntimeError: it broke\n"

    monkeypatch.setattr(gpu.subprocess, "Popen", Process)
    monkeypatch.setattr(gpu.os, "killpg", lambda pid, number: calls.append("killed"))
    options = gpu.argparse.Namespace(
        out=tmp_path, data_dir=None, seconds=1000.0, training_seconds=60.0, only=["tests", "steps", "samplers"]
    )
    gpu.run_all(options, CPU)
    assert calls == ["tests", "steps", "samplers", "killed"]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["tests"]["passed"] == 3
    assert found["steps"]["stopped"] == "RuntimeError: it broke"
    assert found["samplers"]["stopped"].startswith("cut off after")
    assert "3 passed" in (tmp_path / "gpu.md").read_text()
    gpu.run_all(options, CPU)
    assert calls == ["tests", "steps", "samplers", "killed"]  # nothing again
