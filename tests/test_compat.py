"""Checkpoints of the paper's own program."""

import pickle

import pytest
import torch

from grbm import UserError
from grbm.compat import load_published
from tests.conftest import random_model


def test_a_published_checkpoint_loads(tmp_path):
    model = random_model(5, 3, 0, dtype=torch.float32)
    torch.save({"model": model.state_dict(), "epoch": 3000}, tmp_path / "model.pth")
    loaded = load_published(tmp_path / "model.pth")
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    assert torch.equal(load_published(tmp_path / "bare.pth").W, model.W)


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_nothing_in_a_checkpoint_is_executed(tmp_path):
    torch.save({"model": Payload()}, tmp_path / "evil.pth")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Payload()))
    for name in ("evil.pth", "evil.pkl"):
        with pytest.raises(UserError, match="safely"):
            load_published(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("mu"), "lacks the parameter mu"),
        (lambda p: p.update(b=torch.zeros(7)), "b of shape"),
        (lambda p: p["W"].fill_(torch.nan), "NaN or infinite numbers in W"),
        (lambda p: p.update(W=torch.zeros(5)), "W of shape"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, message):
    parameters = {k: v.clone() for k, v in random_model(5, 3, 0).state_dict().items()}
    change(parameters)
    torch.save({"model": parameters}, tmp_path / "x.pth")
    with pytest.raises(UserError, match=message):
        load_published(tmp_path / "x.pth")


def test_missing_and_truncated_files(tmp_path):
    with pytest.raises(UserError, match="not a file"):
        load_published(tmp_path / "none.pth")
    torch.save({"model": random_model(5, 3, 0).state_dict()}, tmp_path / "x.pth")
    content = (tmp_path / "x.pth").read_bytes()
    (tmp_path / "x.pth").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="safely"):
        load_published(tmp_path / "x.pth")
