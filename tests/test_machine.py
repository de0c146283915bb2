"""What `grbm doctor --machine` says of a machine."""

import json
from pathlib import Path

import pytest

from grbm.cli.main import main
from grbm.report.machine import Gpu, Machine, lines, look
from grbm.samplers.engines import compiled

PLAIN = Machine("Some processor", 4, 8 << 30, "native", False, "bfloat16 vectors", {"highest": 9.0, "fast": 4.5}, [])


def test_this_machine_is_described():
    found = look()
    assert found.engine == ("pytorch" if compiled.library() is None else "native")
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if found.engine == "native" and "avx512f" in flags:
        has_vectors = "avx512_bf16" in flags and "GenuineIntel" not in flags
        units = "bfloat16 matrix units" if "amx_bf16" in flags else None
        assert found.fast == (units or ("bfloat16 vectors" if has_vectors else "float32"))
    assert all(0 < x < 10_000 for x in found.milliseconds.values())


@pytest.mark.parametrize(
    ("machine", "said", "unsaid"),
    [
        (PLAIN, ["native code, compiled", "AVX512-BF16", "9.0 ms, and 4.5 ms with fast (2.0 times as fast)"], "($GRBM"),
        (PLAIN._replace(fast="bfloat16 matrix units"), ["on matrix units (AMX)"], "AVX512"),
        (PLAIN._replace(fast="float32"), ["this processor does not multiply bfloat16 faster"], "with fast ("),
        (PLAIN._replace(engine="pytorch", fast="float32"), ["no C compiler that works", "PyTorch runs them"], "($GRBM"),
        (PLAIN._replace(engine="pytorch", fast="float32", forced=True), ["($GRBM_ENGINE says so)"], "compiler"),
        (PLAIN._replace(gpus=[Gpu("A GPU", 80 << 30, "fused")]), ["A GPU, 80 GiB", "float16"], "no GPU"),
        (PLAIN._replace(gpus=[Gpu("A GPU", 80 << 30, "pytorch")]), ["Triton or a C compiler is missing"], "no GPU"),
    ],
)
def test_words(machine, said, unsaid):
    text = "\n".join(lines(machine))
    assert all(part in text for part in said), text
    assert unsaid not in text


def test_the_command(capsys, tmp_path):
    assert main(["doctor", "--machine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_threads"] >= 1
    assert main(["doctor", "--machine"]) == 0
    assert "Processor: " in capsys.readouterr().out
    assert main(["doctor"]) == 2
    assert "or --machine and no run" in capsys.readouterr().err
