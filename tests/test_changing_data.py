"""Data that change while they are used: one sentence, and the run goes on from its last checkpoint."""

import os

import numpy as np
import pytest
import torch

from grbm import cli, runs
from grbm.core import memory
from grbm.core.errors import UserError
from grbm.data.arrays import open_array
from grbm.data.standardise import Standardised
from grbm.data.tables import StoredTable
from grbm.data.transforms import Elementwise
from grbm.runs.config import RunConfig
from grbm.runs.training import train
from tests.helpers import TINY


def cut(path, whole: bytes) -> None:
    os.truncate(path, len(whole) // 2)


def spoil(path, whole: bytes) -> None:
    """NaN in the last rows, by another program."""
    with path.open("r+b") as file:
        file.seek(len(whole) - 800)
        file.write(np.full(100, np.nan).tobytes())
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [cut, spoil])
@pytest.mark.parametrize("stored", ["x.npy", "x.npz"])
def test_a_mapped_file_that_is_changed_is_not_read_on(change, stored, tmp_path):
    path, X = tmp_path / stored, np.random.default_rng(0).normal(size=(5000, 4))
    (np.save if stored == "x.npy" else np.savez)(path, X)
    rows = open_array(path)
    torch.testing.assert_close(rows[torch.tensor([4999])], torch.from_numpy(X[[4999]]))
    change(path, path.read_bytes())
    with pytest.raises(UserError, match=stored):
        rows[torch.tensor([4999])]


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 4))
    np.save(tmp_path / "x.npy", X)
    rows = open_array(tmp_path / "x.npy")
    np.save(tmp_path / "y.npy", 2 * X)
    os.replace(tmp_path / "y.npy", tmp_path / "x.npy")
    torch.testing.assert_close(rows[:], torch.from_numpy(X))


@pytest.mark.parametrize("change", [cut, spoil])
def test_a_run_whose_data_are_changed_goes_on_from_its_last_checkpoint(change, tmp_path, capsys):
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).normal(size=(5000, 4)))
    whole = path.read_bytes()
    args = [
        "train",
        "array",
        "--data",
        str(path),
        *TINY,
        "--train.n-updates",
        "12",
        "--train.rounds",
        "0",
        "--memory",
        "0",
    ]
    args += ["--checkpoint.minutes", "1e-6", "--out"]
    assert cli.main([*args, str(tmp_path / "good")]) == 0
    config = RunConfig.read(tmp_path / "good" / "config.json")

    def disturb(update, record):
        if update == 6:
            change(path, whole)

    with pytest.raises(UserError, match=r"x\.npy"):
        train(config, tmp_path / "run", on_update=disturb)
    stamp = os.stat(path).st_mtime_ns
    path.write_bytes(whole)
    os.utime(path, ns=(stamp, stamp))
    assert cli.main(["resume", str(tmp_path / "run"), "--no-figures"]) == 0
    one, two = (runs.read(tmp_path / name).model for name in ("good", "run"))
    assert torch.equal(one.W, two.W)


def test_rows_that_are_no_longer_finite_are_not_blamed_on_the_model():
    x = np.zeros((10, 2))
    table = StoredTable(lambda index: x[index], torch.arange(10), 2)
    rows = Standardised(table, Elementwise.of(torch.zeros(2), torch.ones(2)))
    assert rows[torch.tensor([3])].tolist() == [[0, 0]]
    x[3, 1] = np.nan
    with pytest.raises(UserError, match="NaN"):
        rows[torch.tensor([3])]


def test_memory_of_sizes_that_nobody_asks_for_any_more_is_given_back(monkeypatch):
    monkeypatch.setattr(memory, "_free", [])
    monkeypatch.setattr(memory, "_returned", type(memory._returned)())
    monkeypatch.setattr(memory, "_asked", {})
    monkeypatch.setattr(memory, "IDLE", 20 << 20)
    for k in range(8):
        memory.empty((1 << 20) + (k << 18))  # 4 MB and more, given back at once
    for _ in range(memory.LATELY + 10):
        memory.empty(1 << 18)
    assert sum(map(len, memory._free)) <= (20 << 20) + 2 * (1 << 20)
    assert len(memory._free) >= 1, "some are kept"
