"""Parameters as the native code reads them (`packing.c`), and the memory that a call of it needs."""

from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor

from grbm.core import memory
from grbm.model import Energy, TemperedEnergy
from grbm.samplers.engines import structs
from grbm.samplers.engines.compiled import call

PANEL, FEW = 64, 4  # as in arithmetic.h: columns of a packed matrix that lie together; visible units treated one by one
AS_IT_IS, INVERSE, ROOT, INVERSE_ROOT = range(4)  # as in packing.c: what becomes of the numbers of a table


class Room(NamedTuple):
    """Arrays of float32 in one piece of memory, and their addresses by name; the piece must outlive their use."""

    piece: Tensor
    at: dict[str, int]

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> "Room":
        """Room for so many numbers of each name, each array at the beginning of a cache line."""
        starts, end = {}, 0
        for name, size in sizes.items():
            starts[name] = 4 * end
            end += -(-size // 16) * 16
        piece = memory.empty(end)
        base = piece.data_ptr()
        return cls(piece, {name: base + start for name, start in starts.items()})


class Laid(NamedTuple):
    """Rows of numbers, or of ones without ``x`` (., n): row k of ``rows`` is its row k // ``repeat``, padded."""

    x: Tensor | None
    n: int
    row: int  # floats from one row to the next
    rows: int = 1
    repeat: int = 1
    kind: int = AS_IT_IS
    padding: float = 0.0


def addresses(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Where they lie; each must be contiguous, and outlive the call."""
    return {name: x.data_ptr() for name, x in tensors.items()}


def padded(n: int) -> int:
    """Floats from one row of ``n`` to the next: whole cache lines, no power of two (rows would share cache sets)."""
    row = -(-n // 16) * 16
    return row + 16 if row % 128 == 0 else row


class Tables:
    """Rows by name in one piece, which stay where they are while their numbers change."""

    def __init__(self, tables: Mapping[str, Laid]) -> None:
        self.room = Room.of({name: t.rows * t.row for name, t in tables.items()})
        for name, t in tables.items():  # C looks at no sizes
            if t.x is not None and (t.repeat < 1 or t.x.numel() != t.n * -(-t.rows // t.repeat)):
                raise ValueError(f"{name} of shape {tuple(t.x.shape)} does not fit {t.rows} rows of {t.n} units.")
        laid = zip(self.room.at.values(), tables.values(), strict=True)
        every = [structs.Table(None, out, t.rows, t.repeat, t.n, t.row, t.kind, t.padding) for out, t in laid]
        self._every = (structs.Table * len(tables))(*every)

    def lay(self, tables: Mapping[str, Laid]) -> None:
        """Lay the numbers of ``tables``, of the same names and sizes."""
        held = [None if t.x is None else t.x.float().contiguous() for t in tables.values()]
        for table, x in zip(self._every, held, strict=True):
            table.x = None if x is None else x.data_ptr()
        call("grbm_lay", self._every, len(held))


def lay(tables: Mapping[str, Laid]) -> Room:
    """All these rows, in one piece."""
    made = Tables(tables)
    made.lay(tables)
    return made.room


_packed: WeakKeyDictionary[Energy, dict[bool, dict[str, Tensor]]] = WeakKeyDictionary()  # by untempered energy and half
_tables: WeakKeyDictionary[Energy, dict[tuple[int, bool], Room]] = WeakKeyDictionary()  # the rest


class Packer:
    """Where W is packed: by visible units, and by hidden ones unless there are FEW visible ones."""

    def __init__(self, N: int, M: int, half: bool) -> None:
        step = 2 if half else 1
        self.half = half
        self.up = memory.empty(-(-M // PANEL), -(-N // step), PANEL)
        self.down = memory.empty(-(-N // PANEL), -(-M // step), PANEL) if N > FEW else None
        down = None if self.down is None else self.down.data_ptr()
        self._every = structs.Packing(N, M, half, None, None, self.up.data_ptr(), down)

    def pack(self, energy: Energy) -> None:
        """Pack the weights of ``energy``."""
        W, unit = energy.W.contiguous(), (energy.var.sqrt() if self.half else energy.var).contiguous()
        self._every.W, self._every.unit = W.data_ptr(), unit.data_ptr()
        call("grbm_pack", self._every)


def weights(energy: Energy) -> Laid:
    """The rows of W as they are: what is read by hidden units where there are FEW visible ones."""
    return Laid(energy.W, energy.n_hidden, padded(energy.n_hidden), energy.n_visible)


def pack(energy: Energy, half: bool) -> dict[str, Tensor]:
    """W by visible units, ``up``, and by hidden ones, ``down``: of FEW visible units W itself, padded."""
    packer = Packer(energy.n_visible, energy.n_hidden, half)
    packer.pack(energy)
    return {"up": packer.up, "down": lay({"W": weights(energy)}).piece if packer.down is None else packer.down}


def constants(energy: Energy, R: int, half: bool) -> dict[str, int]:
    """Addresses of what the parameters give, with a row for each of R replicas; they last as ``energy`` does."""
    packed, tables = _packed.setdefault(energy.untempered, {}), _tables.setdefault(energy, {})
    if half not in packed:  # threads may both make it: the first one's is kept, since C may have its address
        packed.setdefault(half, pack(energy.untempered, half))
    if (R, half) not in tables:
        tables.setdefault((R, half), lay(parameters(energy, R, half)))
    return tables[R, half].at | addresses(packed[half])


def parameters(energy: Energy, R: int, half: bool) -> dict[str, Laid]:
    """Rows that walks read; with ``half``, at one temperature, operands are (v - mu)/sigma and W/sigma."""
    (N, M), var = energy.W.shape, energy.var
    beta, gain = (energy.beta, energy.gain) if isinstance(energy, TemperedEnergy) else (None, None)
    repeat = R if beta is None or beta.ndim == 0 else 1  # else a row for each inverse temperature
    v, h = (N, padded(N), R, repeat), (M, padded(M), R, repeat)
    b = energy.b + (energy.mu / var) @ energy.W if half else energy.b
    return {
        "real": Laid(None, *v),
        "inverse": Laid(var, *v, INVERSE_ROOT),
        "beta": Laid(beta, 1, 1, R, repeat),
        "b": Laid(b, *h, AS_IT_IS, -87.0),
        "mu": Laid(energy.mu, *v),
        "gain": Laid(var, *v, ROOT) if half else Laid(gain, *v),
        "inverse_var": Laid(var, *v, INVERSE),
    }
