"""Checkpoints of the paper's own program, others' conventions, folders to pass on, and other units."""

import json
import pickle

import pytest
import torch

from grbm import GRBM, UserError
from grbm.core.randomness import generator
from grbm.evaluate import exact
from grbm.interchange.conventions import from_natural, from_pydeep, from_scaled, load_published, load_rbms
from tests.helpers import random_model


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
        with pytest.raises(UserError, match=name):
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
    with pytest.raises(UserError, match=r"none\.pth"):
        load_published(tmp_path / "none.pth")
    torch.save({"model": random_model(5, 3, 0).state_dict()}, tmp_path / "x.pth")
    content = (tmp_path / "x.pth").read_bytes()
    (tmp_path / "x.pth").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"x\.pth"):
        load_published(tmp_path / "x.pth")


def same_density(model, energy, N: int, M: int) -> None:
    """The foreign energy of any (v, h) less ours is one constant."""
    rng = generator(0, "foreign")
    v = 2 * torch.randn(200, N, generator=rng).double()
    h = (torch.rand(200, M, generator=rng) < 0.5).double()
    difference = energy(v, h) - model.double().energy(v, h)
    assert difference.std() < 1e-4 * energy(v, h).std()
    assert energy(v, h).std() > 1


def arrays(N: int, M: int) -> list[torch.Tensor]:
    rng = generator(1, "foreign")
    W, a, b, o_v, o_h = (torch.randn(*s, generator=rng).double() for s in ((N, M), (N,), (M,), (N,), (M,)))
    std = (0.4 * torch.randn(N, generator=rng).double()).exp()
    return [W, a, b, o_v, o_h, std]


def test_weights_scaled_by_sigma():
    W, a, b, _, _, std = arrays(4, 3)
    model = from_scaled(W, a, b, std)
    same_density(model, lambda v, h: (0.5 * ((v - a) / std) ** 2).sum(1) - ((v / std) @ W * h).sum(1) - h @ b, 4, 3)
    same_density(
        from_scaled(W.numpy(), a.numpy(), b.numpy(), 0.5),
        lambda v, h: (2 * (v - a) ** 2).sum(1) - 2 * (v @ W * h).sum(1) - h @ b,
        4,
        3,
    )


def test_shapes_and_signs_that_cannot_be():
    W, a, b, _, _, std = arrays(4, 3)
    for wrong, message in (((W.T, a, b, std), "do not fit"), ((W, a, b, -std), "above 0"), ((W, a, b, 0.0), "above 0")):
        for function in (from_scaled, from_natural):
            with pytest.raises(UserError, match=message):
                function(*wrong)
    with pytest.raises(ValueError, match="scale"):
        random_model(2, 2, 0).rescaled(torch.zeros(2), torch.tensor([1.0, -1]))


def test_natural_parameters():
    W, a, b, _, _, std = arrays(4, 3)
    model = from_natural(W, a, b, std)
    same_density(model, lambda v, h: (0.5 * std * v**2).sum(1) - v @ a - h @ b - (v @ W * h).sum(1), 4, 3)


def test_pydeep_with_its_offsets():
    W, a, b, o_v, o_h, std = arrays(4, 3)

    class Pydeep:  # the shapes that PyDeep keeps
        w, bv, bh = W.numpy(), a.numpy()[None], b.numpy()[None]
        sigma, ov, oh = std.numpy()[None], o_v.numpy()[None], o_h.numpy()[None]

    def energy(v, h):
        quadratic = (0.5 * ((v - o_v - a) / std) ** 2).sum(1)
        return quadratic - (((v - o_v) / std**2) @ W * (h - o_h)).sum(1) - (h - o_h) @ b

    same_density(from_pydeep(Pydeep()), energy, 4, 3)
    mapping = {name: getattr(Pydeep, name) for name in ("w", "bv", "bh", "sigma", "ov", "oh")}
    assert torch.equal(from_pydeep(mapping).W, from_pydeep(Pydeep()).W)
    del mapping["ov"]
    with pytest.raises(UserError, match="lacks ov"):
        from_pydeep(mapping)


def test_an_archive_of_rbms_turned_round(tmp_path):
    h5py = pytest.importorskip("h5py")
    W, gaussian, binary, *_ = arrays(4, 3)
    with h5py.File(tmp_path / "rbm.h5", "w") as file:
        file["model_type"] = "BGRBM"
        for update, factor in ((5, 0.0), (20, 1.0)):
            group = file.create_group(f"update_{update}/params")
            group["weight_matrix"] = factor * W.T.numpy()  # (binary, Gaussian)
            group["vbias"], group["hbias"] = binary.numpy(), gaussian.numpy()
    model = load_rbms(tmp_path / "rbm.h5", inverse_var=3.0)
    same_density(model, lambda v, h: 0.5 * 3 * (v**2).sum(1) - v @ gaussian - h @ binary - (v @ W * h).sum(1), 4, 3)
    assert (load_rbms(tmp_path / "rbm.h5", 5).W == 0).all()
    # Its sampler: h = hbias + v W + normal noise of variance 1, and v ~ sigmoid(vbias + h Wᵀ).
    sampled = load_rbms(tmp_path / "rbm.h5").double()
    v = torch.randn(10, 4, generator=generator(0, "v")).double()
    torch.testing.assert_close(sampled(v), (binary + v @ W).sigmoid(), atol=1e-6, rtol=0)
    h = torch.ones(1, 3).double()
    torch.testing.assert_close(sampled.visible_mean(h), gaussian + h @ W.T, atol=1e-6, rtol=0)
    assert (sampled.var == 1).all()
    with pytest.raises(UserError, match="no update 7; it has"):
        load_rbms(tmp_path / "rbm.h5", 7)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["model_type"] = "BBRBM"
    (tmp_path / "none.h5").write_bytes(b"nothing")
    for name, message in (("other.h5", "holds BBRBM"), ("none.h5", "not an archive"), ("missing.h5", "not an archive")):
        with pytest.raises(UserError, match=message):
            load_rbms(tmp_path / name)


def test_pretrained_folders(tmp_path):
    model = random_model(5, 3, 0)
    model.save_pretrained(tmp_path / "a" / "b")
    again = GRBM.from_pretrained(tmp_path / "a" / "b")
    assert all(torch.equal(x, y) for x, y in zip(again.parameters(), model.parameters(), strict=True))
    assert json.loads((tmp_path / "a/b/config.json").read_text())["n_hidden"] == 3
    random_model(5, 4, 0).save_pretrained(tmp_path / "a" / "b")  # it is ours to replace
    assert GRBM.from_pretrained(tmp_path / "a" / "b").n_hidden == 4
    with pytest.raises(UserError, match=r"model\.safetensors"):
        GRBM.from_pretrained(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text('{"preset": "digits"}')
    with pytest.raises(UserError, match=r"config\.json"):
        model.save_pretrained(tmp_path / "run")
    assert not (tmp_path / "run/model.safetensors").exists()


def test_a_machine_in_the_data_s_own_units():
    model = random_model(5, 3, 0)
    mean, scale = torch.tensor([0.0, 3, -2, 10, 1]).double(), torch.tensor([1.0, 0.1, 5, 20, 2]).double()
    moved = model.rescaled(mean, scale)
    z = torch.randn(50, 5, generator=generator(0, "z")).double()
    x = mean + scale * z
    torch.testing.assert_close(moved(x), model(z), atol=1e-9, rtol=0)
    torch.testing.assert_close(exact.log_prob(moved, x), exact.log_prob(model, z) - scale.log().sum())
    as_arrays = model.rescaled(mean.numpy(), scale.numpy())
    assert torch.equal(as_arrays.b, moved.b)
    with pytest.raises(ValueError, match="one for each of the 5"):
        model.rescaled(mean[:2], scale)
    assert exact.log_z(moved) == pytest.approx(exact.log_z(model) + float(scale.log().sum()))
    h = torch.ones(50, 3).double()
    torch.testing.assert_close(moved.energy(x, h), model.energy(z, h))
