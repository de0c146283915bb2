"""What native code is handed: each a C struct of the same fields, in the same order."""

import ctypes
from typing import ClassVar


class Walk(ctypes.Structure):
    """The C struct of the same name, in steps.h."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in (
            "n_replicas", "n_chains", "chunk", "n_visible", "n_hidden", "n_steps", "burn_in", "adjusted", "adjust_from",
            "mean_field", "probabilities", "draw_start", "held", "keep_p", "v_row", "h_row", "ring", "move_row", "half",
        )]
        + [("key", ctypes.c_uint64)]
        + [(name, ctypes.c_uint32) for name in ("first_chain", "first_draw", "replica")]
        + [("temperature", ctypes.c_float)]
        + [(name, ctypes.c_void_p) for name in (
            "up", "down", "real", "inverse", "beta", "b", "mu", "gain", "inverse_var", "shrink", "noise_std",
            "start_v", "start_h", "start_p", "v", "h", "p", "last_v", "last_h", "last_p", "mean", "old_mean",
            "free_energy", "old_free_energy", "log_q", "tile", "log_p", "old_log_p", "plain_b", "coupling", "halves",
            "sum_v", "sum_v2", "sum_h", "sum_vh", "accept", "accept_chain",
        )]
    )  # fmt: skip


class Ladder(ctypes.Structure):
    """The C struct of the same name, in tempered.c."""

    _fields_: ClassVar = [("walk", Walk)] + [(name, ctypes.c_void_p) for name in (
        "gaps", "base_mean", "base_inverse_var", "plain_mu", "plain_inverse_var", "v", "h", "p", "difference",
        "accepted",
    )]  # fmt: skip


class AnnealedPath(ctypes.Structure):
    """The C struct Path, in annealed.c."""

    _fields_: ClassVar = [
        ("walk", Walk), ("betas", ctypes.c_void_p), ("base_mean", ctypes.c_void_p),
        ("base_inverse_var", ctypes.c_void_p), ("back", ctypes.c_int64), ("tables", ctypes.c_void_p),
        ("logits", ctypes.c_void_p), ("log_weight", ctypes.c_void_p),
    ]  # fmt: skip


class Given(ctypes.Structure):
    """The C struct of the same name, in given.c."""

    _fields_: ClassVar = [
        ("walk", Walk), ("burn_in", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (
            "given", "share", "std", "noise", "zero", "one", "total", "squares",
        )),
    ]  # fmt: skip


class Sweep(ctypes.Structure):
    """The C struct of the same name, in collapsed.c."""

    _fields_: ClassVar = [("n_hidden", ctypes.c_int64), ("n_blocks", ctypes.c_int64)] + [
        (name, ctypes.c_void_p) for name in ("J", "bar", "h", "field")
    ]


class Table(ctypes.Structure):
    """The C struct of the same name, in packing.c."""

    _fields_: ClassVar = [("x", ctypes.c_void_p), ("out", ctypes.c_void_p)] + [
        (name, ctypes.c_int64) for name in ("rows", "repeat", "n", "row", "kind")
    ] + [("padding", ctypes.c_float)]  # fmt: skip


class Packing(ctypes.Structure):
    """The C struct of the same name, in packing.c."""

    _fields_: ClassVar = [(name, ctypes.c_int64) for name in ("n_visible", "n_hidden", "half")] + [
        (name, ctypes.c_void_p) for name in ("W", "unit", "up", "down")
    ]


class Averages(ctypes.Structure):
    """The C struct of the same name, in averages.c."""

    _fields_: ClassVar = [(name, ctypes.c_int64) for name in (
        "n", "chunk", "n_visible", "n_hidden", "h_row", "weighted",
    )] + [(name, ctypes.c_void_p) for name in (
        "v", "up", "b", "mu", "inverse_var", "log_q", "free_energy", "top", "sum_v", "sum_v2", "sum_h", "sum_vh",
    )]  # fmt: skip


class Sums(ctypes.Structure):
    """The C struct of the same name, in learning.c."""

    _fields_: ClassVar = [(name, ctypes.c_int64) for name in (
        "n_blocks", "v_row", "v2_row", "h_row", "vh_block", "vh_row",
    )] + [(name, ctypes.c_void_p) for name in ("v", "v2", "h", "vh")]  # fmt: skip


class Pool(ctypes.Structure):
    """The C struct of the same name, in learning.c."""

    _fields_: ClassVar = [
        ("n_visible", ctypes.c_int64), ("n_hidden", ctypes.c_int64), ("n_data", ctypes.c_double),
        ("n_chains", ctypes.c_double), ("data", Sums), ("chains", Sums),
        *((name, ctypes.c_void_p) for name in ("v", "v2", "h", "vh", "data_v", "data_h", "chains_v2")),
    ]  # fmt: skip


class Ascent(ctypes.Structure):
    """The C struct of the same name, in learning.c."""

    _fields_: ClassVar = [(name, ctypes.c_int64) for name in ("n_visible", "n_hidden", "h_row", "centred")] + [
        ("scale", ctypes.c_double), ("n_data", ctypes.c_double),
    ] + [(name, ctypes.c_void_p) for name in (
        "own", "v", "v2", "h", "vh", "data_v", "data_h", "W", "mu", "var",
        "grad_W", "grad_b", "grad_mu", "grad_log_var", "slope_b", "offset_h", "columns", "squares",
    )]  # fmt: skip


class Phases(ctypes.Structure):
    """The C struct of the same name, in learning.c."""

    _fields_: ClassVar = [("data", Walk), ("chains", Walk), ("ascent", Ascent)]


class Follower(ctypes.Structure):
    """The C struct of the same name, in learning.c."""

    _fields_: ClassVar = [
        ("n", ctypes.c_int64), ("x", ctypes.c_void_p), ("grad", ctypes.c_void_p),
        ("rate", ctypes.c_float), ("least", ctypes.c_float),
    ]  # fmt: skip


class Descent(ctypes.Structure):
    """The C struct of the same name, in learning.c."""

    _fields_: ClassVar = [("n", ctypes.c_int64), ("followers", ctypes.c_void_p), ("clip", ctypes.c_float)]


class Noise(ctypes.Structure):
    """The C struct of the same name, in noise.c."""

    _fields_: ClassVar = [
        ("n_chains", ctypes.c_int64), ("n", ctypes.c_int64), ("uniform", ctypes.c_int64), ("key", ctypes.c_uint64),
        ("first_chain", ctypes.c_uint32), ("draw", ctypes.c_uint32), ("out", ctypes.c_void_p),
    ]  # fmt: skip
