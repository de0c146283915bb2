"""Features of images: the published Inception network as far as it is at hand, and a small classifier of digits."""

import hashlib
import inspect
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from grbm.core.devices import threads
from grbm.core.errors import UserError
from grbm.core.files import cache_folder, read_tensors, write_tensors
from grbm.core.randomness import generator
from grbm.data.arrays import read_member

BATCH = 64
PUBLISHED = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"  # SHA-256 of torch-fidelity's weights


class Features(NamedTuple):
    """A function of images and what to call it."""

    name: str  # e.g. "inception-768"
    label: str  # for tables
    protocol: str  # how images are prepared and which numbers are taken
    extract: Callable[[Tensor], Tensor]  # (n, channels, height, width) in [0, 1] to (n, d), on the CPU
    key: str  # equal for equal functions: what is remembered of one must not be taken for another's
    kernel_label: str = "KID"  # for tables: the kernel distance of these features
    neighbours: bool = False  # whether precision, recall, density and coverage are taken in them


LABELLED = ("digits", "mnist", "fashion-mnist")  # data sets that can have a classifier of their own


def inception(
    weights: Path | None, dataset: str, device: torch.device | str, warn: Callable[[str], None]
) -> Features | None:
    """The network of FID as far as ``weights`` has it; downloaded where they are None.

    None where it cannot be downloaded but ``dataset`` has a classifier of its own, after a word to ``warn``. Raises
    UserError if the network cannot be had.
    """
    if weights is not None and weights.suffix == ".npz":
        return inception_768(weights, device)
    try:
        return inception_2048(weights, device)
    except UserError as error:
        if weights is not None or dataset not in LABELLED:
            raise
        warn(f"{error} Only the classifier trained here is used.")
        return None


def inception_768(weights: Path, device: torch.device | str = "cpu") -> Features:
    """768 features (mean over the map of Mixed_6e) from weights with batch normalisation folded in, a .npz file.

    The network is that of FID, whose pooling branches leave the padding out of the mean, unlike torchvision's. Raises
    UserError if the file is not there or is not these weights.
    """
    network = _partial_inception(weights).to(device).to(memory_format=torch.channels_last).eval()  # 1.6 times as fast

    def extract(images: Tensor) -> Tensor:
        x = functional.interpolate(images.expand(-1, 3, -1, -1), (299, 299), mode="bilinear", align_corners=False)
        return network((2 * x - 1).contiguous(memory_format=torch.channels_last)).mean((2, 3))

    protocol = "clipped to [0, 1], one channel repeated to three, bilinear to 299 x 299; mean of Mixed_6e"
    return Features("inception-768", "FID-768", protocol, _batched(extract, device), _digest(weights), "KID-768")


def inception_2048(weights: Path | None, device: torch.device | str = "cpu") -> Features:
    """The 2048 features of published FIDs, by torch-fidelity, from ``weights`` or downloaded by it."""
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ImportError as error:
        raise UserError(
            "FID with 2048 features needs torch-fidelity: pip install torch-fidelity (in a clone: uv run --extra fid)."
        ) from error
    if weights is not None and not weights.is_file():
        raise UserError(f"{weights} is not a file; give --fid-weights the .pth file that torch-fidelity uses.")
    network = _built(FeatureExtractorInceptionV3, weights or _downloaded()).to(device).eval()

    def extract(images: Tensor) -> Tensor:
        return network((255 * images.expand(-1, 3, -1, -1)).round().to(torch.uint8))[0]

    protocol = "clipped to [0, 1], rounded to 8 bits, torch-fidelity's own resize to 299 x 299; 2048 features"
    key = "published" if weights is None else _digest(weights)
    return Features("inception-2048", "FID", protocol, _batched(extract, device), key)


def _built(kind: Any, weights: Path) -> Any:
    """torch-fidelity's network with the tensors of a file; its own loader would execute a pickle that is in it."""
    try:
        tensors = torch.load(weights, map_location="cpu", weights_only=True)
        with tempfile.TemporaryDirectory() as folder:  # what the loader sees, we have written
            checked = Path(folder) / "weights.pth"
            torch.save({str(name): torch.as_tensor(x) for name, x in tensors.items()}, checked)
            return kind("inception-v3-compat", ["2048"], feature_extractor_weights_path=str(checked))
    except Exception as error:  # of many kinds: not such a file, not these weights
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{weights} does not hold the Inception network's tensors, and nothing else is read ({reason}); give "
            f"--fid-weights the .pth file that torch-fidelity uses, or a .npz of its first part."
        ) from error


def _downloaded() -> Path:
    """The published weights in PyTorch's cache, fetched where they are not; refused where they have another digest."""
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    path = Path(torch.hub.get_dir()) / "checkpoints" / URL_INCEPTION_V3.rpartition("/")[2]
    try:
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(URL_INCEPTION_V3, str(path), hash_prefix=PUBLISHED, progress=False)
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except Exception as error:  # of many kinds: no network, no space, another digest
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"The Inception network could not be had ({reason}); give --fid-weights its file, or for another scale of "
            f"768 features a .npz of its first part."
        ) from error
    if found != PUBLISHED:
        raise UserError(f"{path} is not the published Inception network, or damaged; remove it, to have it fetched.")
    return path


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def _batched(extract: Callable[[Tensor], Tensor], device: torch.device | str) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def batched(images: Tensor) -> Tensor:
        parts = (extract(part.float().clamp(0, 1).to(device)).cpu() for part in torch.split(images, BATCH))
        return torch.cat(list(parts))

    return batched


def _partial_inception(weights: Path) -> nn.Sequential:
    """torchvision's inception_v3 up to Mixed_6e, with the pooling of FID and folded batch normalisation."""
    from torchvision.models import inception

    class InceptionA(inception.InceptionA):  # type: ignore[misc]
        def _forward(self, x: Tensor) -> list[Tensor]:
            pooled = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
            far = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
            return [self.branch1x1(x), self.branch5x5_2(self.branch5x5_1(x)), far, self.branch_pool(pooled)]

    class InceptionC(inception.InceptionC):  # type: ignore[misc]
        def _forward(self, x: Tensor) -> list[Tensor]:
            pooled = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
            near = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
            far = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
            far = self.branch7x7dbl_5(self.branch7x7dbl_4(far))
            return [self.branch1x1(x), near, far, self.branch_pool(pooled)]

    blocks = [inception.BasicConv2d, InceptionA, inception.InceptionB, InceptionC]
    blocks += [inception.InceptionD, inception.InceptionE, inception.InceptionAux]
    full = inception.Inception3(aux_logits=False, init_weights=False, inception_blocks=blocks)
    network = nn.Sequential(OrderedDict(takewhile(lambda named: named[0] != "Mixed_7a", full.named_children())))
    if not weights.is_file():
        raise UserError(f"{weights} is not a file; give --fid-weights the .npz of the first part of the network.")
    try:
        for name, layer in network.named_modules():
            if isinstance(layer, inception.BasicConv2d):
                _fold(layer, _numbers(weights, f"{name}.weight"), _numbers(weights, f"{name}.bias"))
    except (UserError, ValueError) as error:
        raise UserError(f"{weights} does not hold the first part of the Inception network ({error}).") from error
    return network


def _numbers(path: Path, name: str) -> Tensor:
    """An array of a .npz archive as finite float32 numbers, held against its checksum."""
    x = torch.from_numpy(read_member(path, name).copy())
    if not x.is_floating_point() or not x.isfinite().all():
        raise ValueError(f"{name} holds what are no finite numbers")
    return x.float()


def _fold(layer: Any, weight: Tensor, bias: Tensor) -> None:
    """A convolution whose normalisation is in its weights already."""
    if layer.conv.weight.shape != weight.shape:
        raise ValueError(f"a weight has shape {tuple(weight.shape)}, not {tuple(layer.conv.weight.shape)}")
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"a bias has shape {tuple(bias.shape)}, not {tuple(weight.shape[:1])}")
    layer.conv.weight.data, layer.conv.bias, layer.bn = weight, nn.Parameter(bias), nn.Identity()


class Classifier(nn.Module):
    """Two strided convolutions and a layer of 128 features, for single-channel pictures of clothes or digits."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 32, 5, 2, 2)
        self.second = nn.Conv2d(32, 64, 5, 2, 2)
        self.hidden = nn.Linear(64 * -(-height // 4) * -(-width // 4), 128)
        self.last = nn.Linear(128, 10)

    def features(self, images: Tensor) -> Tensor:
        """(n, 1, H, W) in [0, 1] to (n, 128)."""
        x = functional.relu(self.second(functional.relu(self.first(2 * images - 1))))
        return functional.relu(self.hidden(x.flatten(1)))

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.features(images))


@threads(1)
def train_classifier(
    images: Tensor, labels: Tensor, shape: tuple[int, int], *, epochs: int = 3, seed: int = 0
) -> Classifier:
    """A classifier of images (n, H · W) in [0, 1], by Adam; everything random follows from ``seed``.

    On one thread, so that its numbers do not depend on how many there are.
    """
    model = Classifier(*shape)
    rng = generator(seed, "classifier")
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(torch.randn(p.shape, generator=rng) * (2 / p[0].numel()) ** 0.5)
            else:
                p.zero_()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, n = images.float().view(-1, 1, *shape), len(images)
    for epoch in range(epochs):
        order = torch.randperm(n, generator=generator(seed, "order", epoch))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - epoch / epochs)
        for rows in torch.split(order, 128):
            optimizer.zero_grad()
            torch.autograd.backward([functional.cross_entropy(model(x[rows]), labels[rows])])
            optimizer.step()
    return model.eval()


def classifier(
    name: str, known: tuple[Tensor, Tensor], unseen: tuple[Tensor, Tensor], shape: tuple[int, int]
) -> Features:
    """The 128 features of `Classifier`, trained once on ``known`` images and labels and kept in the user's cache."""
    program = "".join(inspect.getsource(part) for part in (Classifier, train_classifier))
    source = hashlib.blake2b(program.encode(), digest_size=6).hexdigest()
    data = hashlib.blake2b(known[0].numpy().tobytes() + known[1].numpy().tobytes(), digest_size=6).hexdigest()
    path = cache_folder() / f"classifier-{name}-{data}-{source}.safetensors"
    model = Classifier(*shape)
    try:
        model.load_state_dict(read_tensors(path))
    except (UserError, RuntimeError):  # not there, or damaged
        model = train_classifier(*known, shape, epochs=3 if len(known[0]) > 10_000 else 30)
        write_tensors(path, model.state_dict())
    model.eval()

    with torch.no_grad():
        x = unseen[0].view(-1, 1, *shape)
        right = torch.cat([model(part).argmax(1) for part in torch.split(x, 1000)]) == unseen[1]
    accuracy = float(right.float().mean())
    protocol = f"128 features of a small classifier trained here (test accuracy {accuracy:.1%}); its scale is its own"
    extract = _batched(model.features, "cpu")
    return Features(f"classifier-{name}", "Fréchet", protocol, extract, path.stem, "kernel", True)
