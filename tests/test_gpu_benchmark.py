"""`benchmarks.gpu` without a GPU: every part at a tiny size in Triton's interpreter, cut off and taken up again."""

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("grbm.samplers.engines.cuda", reason="Triton is not installed")

from benchmarks import gpu, gpu_parts, speedrun
from benchmarks.cd_step import Size
from grbm.samplers.engines import tile_table
from grbm.samplers.engines.tile_table import Product
from tests.test_data import mnist_folder
from tests.test_fused import small_tiles  # noqa: F401

CPU = torch.device("cpu")
TINY = Size(3, 5, 4, 2, 3)
TILE = {"BM": 16, "BN": 64, "BK": 16, "num_warps": 4, "num_stages": 1}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path, small_tiles):  # noqa: F811
    monkeypatch.setenv("GRBM_CACHE_DIR", str(tmp_path / "cache"))
    tile_table.read.cache_clear()
    yield
    tile_table.read.cache_clear()


def where(tmp_path, seconds: float = 100.0) -> gpu_parts.Where:
    return gpu_parts.Where(tmp_path, None, seconds, CPU)


def test_without_a_gpu_it_says_so(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path / "out")]
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "no GPU" in done.stdout
    assert not (tmp_path / "out").exists()


def test_every_part_finds_what_the_page_shows(tmp_path):
    found = {"device": "interpreter", "torch": torch.__version__}
    found["tests"] = gpu_parts.tests_seen(
        "tests/test_fused.py::test_a[x y] PASSED [ 1%]\ntests/test_fused.py::test_b[1-2] FAILED [ 2%]\n"
        "tests/test_fused.py::test_c SKIPPED (no) [ 3%]\n"
    )
    assert found["tests"] == {"passed": 1, "skipped": 1, "failed": ["tests/test_fused.py::test_b[1-2]"]}
    found["steps"] = dict(pair for more in gpu_parts.steps(where(tmp_path), [TINY], 16) for pair in more.items())
    per_step = found["steps"]["sizes"][0]["per_step"]
    kinds = [f"{what}, {p}" for p in gpu_parts.PRECISIONS for what in ("fused", "update")]
    assert set(per_step) == {"published", "pytorch", *kinds}
    for one in per_step.values():
        assert one["tflops"] == pytest.approx(6 * 3 * 5 * 4 / one["ms"] / 1e9)
        assert one["times_published"] == pytest.approx(per_step["published"]["ms"] / one["ms"])
    fused = per_step["fused, fast"]
    assert fused["share_of_peak"] == pytest.approx(fused["tflops"] / found["steps"]["peak_tflops"]["fast"])
    found["tiles"] = next(gpu_parts.tiles(where(tmp_path), [TINY], [TILE]))
    assert found["tiles"]["sizes"][0]["tile"]["BM"] == 16
    found["samplers"] = next(gpu_parts.samplers(where(tmp_path), [TINY], 2))
    assert set(found["samplers"]["sizes"][0]["tempered"]) == {"pytorch", *gpu_parts.PRECISIONS}
    found["training"] = {"seconds_an_epoch": 0.25}
    found["training"]["looks"] = [{"seconds": 60.0, "updates": 900, "epochs": 7.5, "frechet": 21.5}]
    page = gpu.page(found)
    for said in ("1 passed, 1 failed", "- tests/test_fused.py::test_b[1-2]", "| fused, fast |", "0.25 s an epoch"):
        assert said in page
    for said in ("3 x 5, 4 chains, 2 steps, tempered, 2 replicas", "| 60 | 900 | 7.5 | 21.5 |", "BM 16"):
        assert said in page


def test_likely_tiles_are_allowed_and_fit_the_product():
    small, large = gpu_parts.likely_tiles(TINY), gpu_parts.likely_tiles(Size(784, 4096, 512))
    assert {tile["BM"] for tile in small} == {32}
    assert {(tile["BM"], tile["BN"]) for tile in large} >= {(128, 128), (128, 256), (64, 128)}
    for tile in small + large:
        assert tile_table._checked(tile) == tile


def test_the_nearest_measured_product_gives_the_tile(monkeypatch):
    other = TILE | {"BM": 128}
    tile_table.save("An H100, of 80 GB", {Product(100, 2, 256): TILE, Product(512, 784, 4096): other})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "An H100, of 80 GB")
    device = torch.device("cuda")
    assert tile_table.tile_for(Product(256, 784, 2048), device, {}) == other
    assert tile_table.tile_for(Product(64, 4, 256), device, {}) == TILE
    assert tile_table.tile_for(Product(64, 4, 256), CPU, {"BM": 1}) == {"BM": 1}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another")
    assert tile_table.tile_for(Product(64, 4, 256), device, {"BM": 1}) == {"BM": 1}


@pytest.mark.parametrize(
    "wrong", ["", "[1]", '{"a": 1}', '[{"product": [1, 2], "tile": {}}]', "BM 48", "BM 512", "BM x"]
)
def test_a_damaged_table_is_passed_over(wrong):
    path = tile_table.save("some", {Product(1, 2, 3): TILE})
    if wrong.startswith("BM"):
        number = wrong.removeprefix("BM ")
        entry = {"product": [1, 2, 3], "tile": TILE | {"BM": int(number) if number.isdigit() else number}}
        wrong = json.dumps([entry])
    path.write_text(wrong)
    assert tile_table.read("some") == {}


def test_training_is_judged_at_its_marks_and_goes_on_where_it_was_cut_off(monkeypatch, tmp_path):
    """What is known after two calls is what one would know: looks in order, seconds that add up."""
    monkeypatch.setattr(speedrun, "judge_of", lambda data_dir: (None, None))
    monkeypatch.setattr(gpu_parts, "judged", lambda model, *rest: float(model.W.detach().abs().sum()))
    tiny = {"n_hidden": 6, "batch_size": 16, "n_images": 4, "spare": 0}
    mnist_folder(tmp_path, compress=True)
    here = where(tmp_path, 1000.0)._replace(data_dir=tmp_path)
    first = list(gpu_parts.training(here._replace(seconds=1e-9), (0.1, 0.2), **tiny))
    assert first == []
    run = gpu_parts.training(here, (0.01, 0.02, 0.6), **tiny)
    one = next(run)
    two = next(run)
    run.close()
    assert two["looks"][0]["updates"] == one["updates"] > 0
    *_, last = gpu_parts.training(here, (0.01, 0.02, 0.6), **tiny)
    assert [look["seconds"] >= mark for look, mark in zip(last["looks"], (0.01, 0.02, 0.6), strict=True)] == [True] * 3
    assert last["looks"][:2] == two["looks"]
    assert last["updates"] > two["updates"]
    assert last["looks"][2]["frechet"] != two["looks"][1]["frechet"] > 0  # it learns


def test_a_part_that_is_cut_off_or_breaks_keeps_what_it_found(monkeypatch, tmp_path):
    """The parent's side: what is done is not done again, what was cut off says so, the page is always there."""
    calls = []

    class Process:
        def __init__(self, command, **options):
            self.name, self.pid = command[command.index("--part") + 1], -1
            calls.append(self.name)
            self.returncode = 1 if self.name == "steps" else 0

        def communicate(self, timeout=None):
            if self.name == "tiles" and timeout is not None:
                gpu.write_text(tmp_path / "tiles.json", json.dumps({"sizes": []}))
                raise subprocess.TimeoutExpired("tiles", timeout)
            if self.name == "tests":
                gpu.write_text(
                    tmp_path / "tests.json", json.dumps({"passed": 3, "failed": [], "skipped": 0, "finished": 1})
                )
            return "", "Traceback\nRuntimeError: it broke\n"

    monkeypatch.setattr(gpu.subprocess, "Popen", Process)
    monkeypatch.setattr(gpu.os, "killpg", lambda pid, number: calls.append("killed"))
    options = gpu.argparse.Namespace(out=tmp_path, data_dir=None, seconds=1000.0, only=["tests", "steps", "tiles"])
    gpu.run_all(options, CPU)
    assert calls == ["tests", "steps", "tiles", "killed"]
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["tests"]["passed"] == 3
    assert found["steps"]["stopped"] == "RuntimeError: it broke"
    assert found["tiles"]["stopped"].startswith("cut off after")
    assert "3 passed" in (tmp_path / "gpu.md").read_text()
    gpu.run_all(options, CPU)
    assert calls == ["tests", "steps", "tiles", "killed"]  # nothing again
