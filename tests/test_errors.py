"""Bad input, one case of each error that no other test of its module raises: its type, and the value that it names."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from grbm import (
    CD,
    GRBM,
    Annealed,
    Base,
    Conditional,
    FitOptions,
    GaussianBernoulliRBM,
    Gibbs,
    GibbsLangevin,
    GlobalMoves,
    ParallelTempering,
    Reference,
    TrainState,
    TrajectoryTempering,
    UserError,
    cli,
    fit,
    runs,
)
from grbm.core.distributed import ProcessGroup
from grbm.core.randomness import Blocks
from grbm.core.typed import read_json
from grbm.data.frame import Frame
from grbm.data.images import load_idx
from grbm.data.loading import Dataset
from grbm.data.pictures import Look, open_arrow, open_pictures
from grbm.data.transforms import Elementwise
from grbm.data.whitening import whiten
from grbm.evaluate.watching import HeldOut, Watch
from grbm.fitting.recipe import ObjectiveConfig
from grbm.report import image_scores
from grbm.runs import checkpoint, folder
from grbm.runs.config import RunConfig
from grbm.runs.preparing import _objective
from grbm.runs.presets import PRESETS
from grbm.samplers import run_chains
from grbm.samplers.updates import hidden_update
from tests.helpers import TINY, learn, mnist_folder, new_state, refused, write_idx

ONE = Reference(torch.ones(1), torch.zeros(1, 2), torch.eye(2)[None])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: GlobalMoves(ONE, n_moves=0), "n_moves .* 0"),
        (lambda: Annealed(power=0.0), r"power .* 0\.0"),
        (lambda: ParallelTempering(n_replicas=1), "n_replicas .* 1"),
        (lambda: ParallelTempering(power=-1.0), r"power .* -1\.0"),
        (lambda: ParallelTempering(sampler=Annealed()), "annealed"),
        (lambda: TrajectoryTempering(sampler=Annealed()), "annealed"),
        (lambda: GibbsLangevin(accept_temperature=0.0), r"accept_temperature .* 0\.0"),
        (lambda: GibbsLangevin(adjust_from=-1), "adjust_from .* -1"),
        (lambda: Conditional(torch.zeros(2, 3), -0.5), "noise_var"),
        (lambda: hidden_update(torch.zeros(2, 3)), "uniform or rng"),
        (lambda: whiten(np.ones((5, 3))), "constant"),
        (lambda: Watch(Gibbs(), HeldOut(torch.zeros(2, 3))), "Gibbs"),
    ],
)
def test_values_that_mean_nothing(make, named):
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize(
    ("n_rows", "options", "named"),
    [
        (11, FitOptions(3, batch_size=4, blocks=4, keep_last=True), "last batch, of 3 rows"),
        (10, FitOptions(3, batch_size=5, blocks=4), "2 processes cannot share 1 blocks"),
    ],
)
def test_batches_that_processes_cannot_share(n_rows, options, named):
    rows = torch.randn(n_rows, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=named):
        fit(new_state(), rows, CD(Gibbs()), options, group=ProcessGroup(0, 2))


def test_items_of_a_data_set_that_are_no_numbers():
    class Words(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, k):
            return "a word"

    model = GRBM(4, 2)
    with pytest.raises(TypeError, match=r"Item 0 .* str"):
        next(fit(TrainState(model, torch.optim.SGD(model.parameters(), 0.1)), Words(), CD(Gibbs())))


def test_what_the_estimator_cannot_do():
    x = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(ValueError, match="whiten=True"):
        GaussianBernoulliRBM(2, whiten=True).partial_fit(x)
    with pytest.raises(ValueError, match="n_contrasts=3"):
        GaussianBernoulliRBM(2, n_contrasts=3, whiten=False).fit(x)
    rbm = GaussianBernoulliRBM(2, n_iter=2, random_state=0).fit(x)
    with pytest.raises(ValueError, match=r"n_steps .* got 3 and 1"):
        rbm.impute(x, n_steps=3, n_chains=1)
    with pytest.raises(ValueError, match="n_replicas"):
        rbm.impute(x, n_replicas=2)
    with pytest.raises(ValueError, match="n_contrasts is 3 now, but was 1 in learning"):
        rbm.set_params(n_contrasts=3, warm_start=True).fit(x)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["reproduce", "fig1", "--only", "nonsense"], ["--only", "nonsense"]),
        (["reproduce", "fig1", "--rules", "nonsense"], ["--rules", "nonsense"]),
        (
            ["reproduce", "fig1", "--rules", "ours", "--only", "gibbs", "--out", "{tmp}/f"],
            ["--rules ours", "--only gibbs"],
        ),
        (["reproduce", "fig2", "--seeds", "2", "--data-dir", "{data}", "--out", "{tmp}/f"], ["fig2", "--seeds"]),
        (["list", "{tmp}/nowhere"], ["nowhere"]),
        (["export", "{run}", "{tmp}/folder.onnx", "--overwrite"], ["folder.onnx"]),
        (["encode", "{run}", "test"], ["encode train"]),
        (["encode", "{run}", "{tmp}/picture.png"], ["picture.png"]),
        (["train", "array", "--data", "{tmp}/x.csv"], ["x.csv", "single row"]),
        (["train", "images", "--data", "{tmp}/x.csv"], ["x.csv"]),
        (["train", "array", "--data", "{tmp}/same.npy", "--dataset.standardise", "whiten"], ["column"]),
        (
            ["train", "array", "--data", "{tmp}/x.npy", "--dataset.standardise", "pixel", "--sampler", "global-moves"],
            ["global-moves"],
        ),
        (["train", "digits", "--out", "{tmp}/x.csv/run"], ["x.csv"]),
        (["doctor", "{tmp}/machine"], ["machine", "GRBM.from_pretrained"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_commands_that_cannot_be_carried_out(args, named, tmp_path, capsys, trained_runs, pictures):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 3)))
    np.save(tmp_path / "same.npy", np.ones((60, 3)))
    (tmp_path / "x.csv").write_text("1,2\n")
    (tmp_path / "folder.onnx").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "picture.png")
    GRBM(3, 2).save_pretrained(tmp_path / "machine")
    places = {"tmp": tmp_path, "data": pictures, "run": tmp_path / "run"}
    if "{run}" in args:
        all_rows = ["--data", str(tmp_path / "x.npy"), "--dataset.held-out", "0", "--dataset.standardise", "pixel"]
        assert cli.main(["train", "array", *all_rows, *TINY, "--out", str(tmp_path / "run")]) == 0
    refused([arg.format(**places) for arg in args], capsys, *named)


def test_a_whitened_model_has_no_units_of_the_data(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 3)))
    whitened = ["--data", str(tmp_path / "x.npy"), "--dataset.standardise", "whiten", "--train.rounds", "0"]
    assert cli.main(["train", "array", *whitened, *TINY, "--out", str(tmp_path / "run")]) == 0
    refused(["export", tmp_path / "run", tmp_path / "folder"], capsys, ".onnx or .pt2", "--dataset.standardise pixel")


def test_files_of_mnist_that_do_not_fit_each_other(tmp_path):
    raw = mnist_folder(tmp_path, compress=False)
    write_idx(raw / "train-labels-idx1-ubyte", np.zeros(19), compress=False)
    with pytest.raises(UserError, match=r"20 images .* 19 labels"):
        load_idx("mnist", tmp_path)
    write_idx(raw / "train-images-idx3-ubyte", np.zeros((20, 8, 8)), compress=False)
    with pytest.raises(UserError, match=r"\(20, 8, 8\)"):
        load_idx("mnist", tmp_path)


def test_hugging_face_data_sets_that_hold_something_else(tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    table.save_to_disk(str(tmp_path / "two"))
    with pytest.raises(UserError, match=r"--key: a, b"):
        open_arrow(tmp_path / "two", None)
    with pytest.raises(UserError, match="no column 'c'"):
        open_arrow(tmp_path / "two", "c")
    with pytest.raises(UserError, match=r"two: a .* --key"):
        open_pictures(tmp_path / "two", Look(), "a")
    datasets.DatasetDict({"train": table, "test": table}).save_to_disk(str(tmp_path / "several"))
    with pytest.raises(UserError, match=r"several .* train, test"):
        open_arrow(tmp_path / "several", None)
    for broken in (tmp_path / "two").glob("*.arrow"):
        broken.write_bytes(b"no arrow")
    with pytest.raises(UserError, match=r"two .* Hugging Face"):
        open_arrow(tmp_path / "two", "a")


def test_weights_of_a_checkpoint_that_are_no_weights(tmp_path, monkeypatch):
    """With the right digest, as another program could have written them."""
    checkpoint.save(tmp_path, learn(new_state(), 3))
    path = checkpoint.updates(tmp_path)[0]
    record = checkpoint.read_record(path)
    content = b"no tensors"
    (path / checkpoint.TENSORS).write_bytes(content)
    changed = record | {"tensors": hashlib.sha256(content).hexdigest()}
    monkeypatch.setattr(checkpoint, "read_record", lambda path: changed)
    with pytest.raises(checkpoint.DamagedError, match=checkpoint.TENSORS):
        checkpoint.read(path)
    tensors = {"model.W": torch.zeros(4, 6)}
    found = checkpoint.Checkpoint(path, 3, tensors, record)
    with pytest.raises(checkpoint.DamagedError, match=r"model\.(b|mu|log_var)"):
        checkpoint._check_fit(found, new_state())


def test_a_run_folder_whose_parts_do_not_belong_together(tmp_path, trained_runs):
    run = trained_runs.copy(tmp_path / "run", "digits", *TINY)
    data = safetensors.torch.load_file(run / runs.folder.DATA)
    with pytest.raises(UserError, match=r"nowhere .* config.json"):
        runs.read(tmp_path / "nowhere")
    small = {name: x[:9].clone() if x.ndim == 1 and len(x) == 64 else x for name, x in data.items()}
    for changed, named in (
        (small, "data.safetensors does not fit"),
        ({k: v for k, v in data.items() if k != "scale"}, "data.safetensors"),
        *((data | {name: data[name][:-1].clone()}, "data.safetensors") for name in ("scale", "base_var")),
        *((data | {"columns": x}, "data.safetensors") for x in (torch.arange(63), torch.arange(64) + 1)),
        (data | {"to_z": torch.eye(64)}, "data.safetensors"),
        (data | {"to_z": torch.eye(64), "to_x": torch.eye(63)}, "data.safetensors"),
        (data | {"to_z": torch.eye(64), "to_x": 2 * torch.eye(64)}, "data.safetensors"),
        (data | {"reference_weights": torch.ones(1)}, "data.safetensors"),
        (data | _reference(weights=0.5), "data.safetensors"),
        (data | _reference(factors=-1.0), "data.safetensors"),
        (data | _reference(means=63), "data.safetensors"),
    ):
        changed.pop("image_shape", None)
        safetensors.torch.save_file(changed, run / runs.folder.DATA)
        with pytest.raises(UserError, match=named):
            runs.read(run)
    (run / folder.TRAJECTORY).mkdir()
    safetensors.torch.save_file({"W": torch.zeros(64, 6)}, run / folder.TRAJECTORY / "00000001.safetensors")
    with pytest.raises(UserError, match=r"00000001\.safetensors"):
        folder.read_trajectory(run)


def _reference(weights: float = 1.0, factors: float = 1.0, means: int = 64) -> dict[str, torch.Tensor]:
    """The tensors of a reference of one component in 64 columns."""
    found = {
        "weights": torch.tensor([weights]),
        "means": torch.zeros(1, means),
        "factors": factors * torch.eye(64)[None],
    }
    return {f"reference_{name}": x for name, x in found.items()}


def test_objectives_that_processes_cannot_share():
    config = PRESETS["digits"].config
    frame = Frame(Elementwise.of(torch.zeros(2), torch.ones(2)), Base(torch.zeros(2), torch.ones(2)))
    config = replace(config, train=replace(config.train, batch_size=101, blocks=4))
    with pytest.raises(UserError, match=r"2 processes .* 101 rows"):
        _objective(config, 1000, frame, ProcessGroup(0, 2))
    rounds = replace(config, objective=ObjectiveConfig("cd", n_steps=1), train=replace(config.train, rounds=2))
    with pytest.raises(UserError, match=r"not cd: .*--train\.rounds 0"):
        _objective(rounds, 1000, frame, ProcessGroup())
    annealed = replace(
        config, train=replace(config.train, batch_size=100, rounds=0), sampler=replace(config.sampler, name="annealed")
    )
    with pytest.raises(ValueError, match=r"[Aa]nnealed"):
        _objective(annealed, 1000, frame, ProcessGroup(0, 2))


def test_distances_need_images_and_enough_of_them(trained_runs):
    run = runs.read(trained_runs.shared("digits", *TINY))
    dataset = run.load_data()
    with pytest.raises(UserError, match="40 training images"):
        image_scores.score_images(run, Dataset(dataset.train[:40], dataset.test, dataset.image_shape), None, n=40)
    with pytest.raises(ValueError, match="not a run on images"):
        image_scores.score_images(run, dataset._replace(image_shape=None), None, n=60)


def test_json_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested"):
        read_json(tmp_path / "x.json")


def test_persistent_chains_that_cannot_be_shared_by_blocks():
    model = GRBM(3, 2)
    sampler = ParallelTempering(Base(torch.zeros(3), torch.ones(3)), 2)

    with pytest.raises(ValueError, match=r"10 chains .* 3 blocks"):
        run_chains(model.freeze(), sampler, torch.zeros(10, 3), 2, Blocks(0, 3), burn_in=0)


def test_configurations_are_read_or_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.json"):
        RunConfig.read(tmp_path / "none.json")


@pytest.mark.parametrize("path", ["nothing.csv", "no/folder", "nothing.npy"])
def test_a_path_that_is_not_there_is_no_misspelt_preset(path, capsys):
    assert cli.main(["train", path]) == 2
    assert f"There is no {path}; check the path." in capsys.readouterr().err
