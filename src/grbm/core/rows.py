"""Rows of data as learning asks for them: a tensor, a table read when needed, or one of PyTorch's data sets."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import data as sets


class Rows(Protocol):
    """Standardised data (n, N), a tensor or read from elsewhere: indexed by a tensor of row numbers."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, which: Tensor, /) -> Tensor: ...


class DatasetRows:
    """The items of a map-style ``torch.utils.data.Dataset`` as rows, flattened; of tuples, such as (image, label), the
    first. ``like`` gives dtype and device."""

    def __init__(self, dataset: Any, like: Tensor) -> None:
        self.dataset, self.like = dataset, like
        self.shape = (len(dataset), self._row(0).numel())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Tensor) -> Tensor:
        rows = torch.stack([self._row(k) for k in which.tolist()])
        if not rows.isfinite().all():
            k = which.tolist()[int((~rows.isfinite()).any(1).nonzero()[0])]
            raise ValueError(f"Item {k} of the data set holds NaN or infinite numbers.")
        return rows

    def _row(self, k: int) -> Tensor:
        item = self.dataset[k]
        item = item[0] if isinstance(item, tuple | list) else item
        try:
            return torch.as_tensor(item).to(self.like).flatten()
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"Item {k} of the data set is a {type(item).__name__}, not numbers; give it a transform such as "
                f"torchvision.transforms.ToTensor()."
            ) from error


def rows_of(data: Any, like: Tensor) -> Tensor | Rows:
    """``data`` as rows: tensors and tables as they are, data sets of PyTorch as numbers like ``like``.

    Of a ``DataLoader`` the data set is taken; batches are made by whoever learns, so that they follow from the seed.
    Raises TypeError for what has no rows that can be asked for by number; the message says what to give.
    """
    if isinstance(data, sets.DataLoader):
        streams = isinstance(data.dataset, sets.IterableDataset)
        if not streams and type(data.sampler) not in (sets.RandomSampler, sets.SequentialSampler):
            raise TypeError(
                f"The DataLoader picks rows by a {type(data.sampler).__name__}, which is not followed here; give the "
                f"rows themselves, such as torch.utils.data.Subset(dataset, rows)."
            )
        if data.collate_fn is not sets.default_collate:
            raise TypeError("The DataLoader has a collate_fn of its own, not called here; put it into the Dataset.")
        data = data.dataset
    if isinstance(data, sets.TensorDataset):
        data = data.tensors[0].flatten(1).to(like)
    elif isinstance(data, sets.IterableDataset) or (isinstance(data, sets.Dataset) and not hasattr(data, "__len__")):
        raise TypeError(
            "data is a stream, whose rows cannot be asked for by number, as a random order by seed needs; collect it "
            "into a tensor (n, N), or give a map-style Dataset."
        )
    elif isinstance(data, sets.Dataset):
        return DatasetRows(data, like)
    elif not isinstance(data, Tensor) and type(data).__module__ == "numpy":
        data = torch.from_numpy(data).to(like)
    if not hasattr(data, "shape") or not hasattr(data, "__getitem__"):
        raise TypeError(f"data must be a tensor (n, N), a Dataset or a DataLoader of one, got {type(data).__name__}.")
    if hasattr(data, "iloc"):
        raise TypeError(f"data must be a tensor (n, N), got {type(data).__name__}: give torch.tensor(data.to_numpy()).")
    if isinstance(data, Tensor):
        if data.layout != torch.strided:
            raise TypeError("data is a sparse tensor; give data.to_dense().")
        if data.is_complex():
            raise TypeError("data is complex; give its real and imaginary parts as columns of their own.")
        data = data.to(like.dtype)
    return data
