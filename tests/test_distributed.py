"""One run on 1, 2 and 4 processes: the same parameters, and a killed worker that comes back."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from grbm import runs
from grbm.core.distributed import ProcessGroup
from grbm.core.randomness import Blocks, generator, local, normal, uniform
from grbm.runs import checkpoint, claiming

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

LEARN = """
import sys
from dataclasses import replace

import torch
from grbm import CD, GRBM, PCD, FitOptions, Gibbs, GibbsLangevin, Langevin, ModifiedCD, ParallelTempering, PartialGibbs
from grbm import TrainState, TrajectoryTempering, fit
from grbm.core.distributed import join, leave
from grbm.learning.sgd import PlainSGD

torch.set_num_threads(1)
group, _ = join("cpu")
N, M = 20, 32
rng = torch.Generator().manual_seed(0)
data = torch.randn(300, N, generator=rng) @ torch.randn(N, N, generator=rng) / N**0.5
options = FitOptions(n_updates=25, batch_size=40, centred=True, blocks=8)
objectives = {
    "pcd": PCD(Gibbs(), 3, n_chains=48, restart=0.1, probabilities=True),
    "tempered": PCD(ParallelTempering(n_replicas=4), 2, n_chains=24),
    "trajectory": PCD(TrajectoryTempering(), 2, n_chains=24),
    "modified": ModifiedCD(GibbsLangevin(0.05, adjust_from=0), 5),
    "modified-more": ModifiedCD(Langevin(0.05, adjust_from=1, per_unit=True), 5, n_chains=80),
    "cd": CD(PartialGibbs(0.5), 2),
    "contrasts": PCD(Gibbs(), 3, n_chains=48, probabilities=True),
    "spectral": PCD(Gibbs(), 3, n_chains=48, probabilities=True),
}
for name, objective in objectives.items():
    model = GRBM(N, M, seed=1, n_contrasts=3 if name == "contrasts" else 1)
    state = TrainState(model, {optimizer}(model.parameters(), lr=0.01), seed=2)
    is_spectral = name == "spectral" and isinstance(state.optimizer, torch.optim.SGD)
    chosen = replace(options, spectral_norm=0.5 if is_spectral else None)
    for metrics in fit(state, data, objective, chosen, group=group):
        pass
    everything = {k: v.clone() for k, v in model.state_dict().items()}
    everything |= {"chains": group.all_gather(metrics.negative.v)}
    everything |= state.adaptation.state_dict
    if metrics.accept_rate is not None:
        everything |= {"accept_rate": metrics.accept_rate.double()}
    assert group.agree(list(model.parameters()))
    assert group.world_size == 1 or not group.agree([model.W + group.rank])
    if group.is_leader:
        torch.save(everything, f"{sys.argv[1]}/{name}-{group.world_size}.pt")
leave()
"""


@pytest.mark.whole
@pytest.mark.parametrize("optimizer", ["PlainSGD", pytest.param("torch.optim.Adam", marks=pytest.mark.slow)])
def test_any_number_of_processes_learns_the_same(optimizer, tmp_path, monkeypatch):
    """The bar is 1e-5; blocks summed apart and added exactly give the same bits, chains included."""
    script = tmp_path / "learn.py"
    script.write_text(LEARN.replace("{optimizer}", optimizer))
    monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path)])
    runpy.run_path(str(script))
    for world in (2, 4):
        command = [*TORCHRUN, str(world), str(script), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        # what counts is what was learned: PyTorch 2.15 now and then aborts a process that has already finished
        assert len(list(tmp_path.glob(f"*-{world}.pt"))) == 8, done.stderr
    for name in ("pcd", "tempered", "trajectory", "modified", "modified-more", "cd", "contrasts", "spectral"):
        one, two, four = (torch.load(tmp_path / f"{name}-{world}.pt", weights_only=True) for world in (1, 2, 4))
        assert ("ladder" in one) == (name == "tempered")
        assert ("contrast_log_weights" in one) == (name == "contrasts")
        assert ("var" in one) == (name == "trajectory")
        assert ("accept_rate" in one) == name.startswith("modified")
        for key in one:
            if key == "accept_rate":  # a number for people, of sums in float32
                assert 0 < one[key] < 1
                torch.testing.assert_close(torch.stack([two[key], four[key]]), one[key].expand(2), atol=1e-5, rtol=0)
                continue
            assert torch.equal(one[key], two[key]), (name, key)
            assert torch.equal(one[key], four[key]), (name, key)


def test_a_block_draws_the_same_wherever_it_is():
    like = torch.zeros(1)
    whole = ProcessGroup().blocks(8, 1, "x")
    parts = [ProcessGroup(rank, 4).blocks(8, 1, "x") for rank in range(4)]
    for draw, shape, axis in ((normal, (16, 3), -2), (uniform, (2, 16), -1), (normal, (3, 16, 5), -2)):
        expected = draw(shape, like, whole, chain_axis=axis)
        mine = list(shape)
        mine[axis] = 4
        assert torch.equal(expected, torch.cat([draw(mine, like, part, chain_axis=axis) for part in parts], axis))
    assert [local(16, part) for part in parts] == [4] * 4
    assert local(16, generator(0)) == 16
    assert isinstance(whole, Blocks)


def test_a_folder_belongs_to_the_job_that_began_it(tmp_path, monkeypatch):
    for began, now, own in (("b-job", "b-job", True), ("b-job", "c-job", False), ("b-job", "a-job", False)):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", began)
        claiming.claim(tmp_path)
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", now)
        assert claiming.is_claimed(tmp_path) == own
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert not claiming.is_claimed(tmp_path)


def test_parts_cover_everything_once():
    for n in (7, 64):
        assert [i for rank in range(3) for i in range(n)[ProcessGroup(rank, 3).part(n)]] == list(range(n))


@pytest.mark.whole
def test_what_cannot_be_shared_is_refused_in_one_sentence(tmp_path):
    command = [
        *TORCHRUN,
        "2",
        "-m",
        "grbm",
        "train",
        "digits",
        "--train.batch-size",
        "101",
        "--out",
        str(tmp_path / "a"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    sentences = [line for line in done.stderr.splitlines() if line.startswith("grbm: ")]
    assert len(sentences) == 1
    assert "2 processes cannot share" in sentences[0]
    assert "cli.py" not in done.stderr  # the only traceback is torchrun's own


@pytest.mark.whole
def test_a_killed_worker_is_restarted_and_ends_where_it_would_have(tmp_path):
    settings = ["--train.n-updates", "120", "--model.n-hidden", "64", "--no-figures", "--log.no-tensorboard"]
    settings += ["--checkpoint.updates", "10"]
    single = [sys.executable, "-m", "grbm", "train", "digits", *settings, "--out", str(tmp_path / "one")]
    subprocess.run(single, check=True, capture_output=True, timeout=300)
    folder = tmp_path / "two"
    command = [*TORCHRUN, "2", "--max-restarts", "2", "-m", "grbm", "train", "digits", *settings, "--out", str(folder)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    killed = _kill_a_worker(job.pid, folder)
    output = job.communicate(timeout=300)[0]
    assert killed
    assert job.returncode == 0, output
    assert "from " in output.split("updates on")[2].splitlines()[0]  # the second start goes on from a checkpoint
    for name in (runs.WEIGHTS, runs.RAW_WEIGHTS):
        one, two = (safetensors.torch.load_file(tmp_path / run / name) for run in ("one", "two"))
        assert all(torch.equal(one[key], two[key]) for key in one)
    lines = [runs.read_metrics(tmp_path / run) for run in ("one", "two")]
    for a, b in zip(*lines, strict=True):
        assert a["update"] == b["update"]
        assert json.dumps(a["grad_norm"]) == json.dumps(b["grad_norm"])


@pytest.mark.slow
def test_machines_restart_together(tmp_path):
    """Two agents, as on two machines: each counts its restarts alone, and the store of the first start lives on."""
    settings = ["--train.n-updates", "200", "--model.n-hidden", "64", "--no-figures", "--log.no-tensorboard"]
    folder = tmp_path / "run"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    nodes = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2", "--rdzv-backend", "c10d"]
    nodes += ["--rdzv-id", "a-job", "--rdzv-endpoint", f"localhost:{port}", "-m", "grbm", "train", "digits"]
    command = [*TORCHRUN[:3], *nodes, *settings, "--checkpoint.updates", "10", "--out", str(folder)]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    try:
        killed = _kill_a_worker(jobs[1].pid, folder)
        outputs = [job.communicate(timeout=240)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert killed
    assert [job.returncode for job in jobs] == [0, 0], outputs
    assert any(", from " in output for output in outputs)
    assert runs.read(folder).status.ended == "finished"


@pytest.mark.whole
def test_a_refusal_stays_one_through_restarts(tmp_path):
    """An old run is not taken for this job's own, and `--overwrite` is not turned into success with old weights."""
    settings = ["--train.n-updates", "3", "--model.n-hidden", "8", "--no-figures", "--log.no-tensorboard"]
    folder = tmp_path / "run"
    command = ["-m", "grbm", "train", "digits", *settings, "--out", str(folder)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        [*TORCHRUN, "2", "--max-restarts", "1", *command], capture_output=True, text=True, timeout=240
    )
    assert done.returncode != 0
    assert done.stderr.count("already holds a run") == 2


@pytest.mark.whole
def test_a_signal_to_the_job_stops_all_after_the_same_update(tmp_path):
    settings = ["--train.n-updates", "100000", "--model.n-hidden", "64", "--no-figures", "--log.no-tensorboard"]
    folder = tmp_path / "run"
    command = [*TORCHRUN, "2", "-m", "grbm", "train", "digits", *settings, "--out", str(folder)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while not runs.read_metrics(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    output = job.communicate(timeout=120)[0]
    sentences = [line for line in output.splitlines() if line.startswith("grbm: ")]
    assert len(sentences) == 1
    assert f"grbm resume {folder}" in sentences[0]
    update = checkpoint.read_record(checkpoint.updates(folder / runs.CHECKPOINTS)[0])["update"]
    assert runs.read(folder).status.ended == "interrupted"
    assert runs.read(folder).status.update == update


def _kill_a_worker(parent: int, folder: Path) -> bool:
    """SIGKILL to the last child of ``parent`` once there are a few checkpoints."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if len(list(folder.glob("checkpoints/update-*"))) >= 2:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
            return True
        time.sleep(0.005)
    return False
