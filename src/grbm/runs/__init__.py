"""A run: its configuration, its folder, training it, and what is done with one: samples, codes, gaps filled in."""

from typing import TYPE_CHECKING

from grbm.lazy import lazily

if TYPE_CHECKING:
    from grbm.runs.claiming import note_written
    from grbm.runs.config import RunConfig, Which
    from grbm.runs.folder import (
        CHECKPOINTS,
        CODES,
        CONFIG,
        DATA,
        EVALUATION,
        FID,
        FIGURES,
        IMPUTED,
        METRICS,
        MIXING,
        RAW_WEIGHTS,
        REPORT,
        SAMPLES,
        STATUS,
        TRACE,
        TRAJECTORY,
        WEIGHTS,
        Run,
        Status,
        model_digest,
        read,
        read_metrics,
        read_status,
    )

__all__ = [
    "CHECKPOINTS",
    "CODES",
    "CONFIG",
    "DATA",
    "EVALUATION",
    "FID",
    "FIGURES",
    "IMPUTED",
    "METRICS",
    "MIXING",
    "RAW_WEIGHTS",
    "REPORT",
    "SAMPLES",
    "STATUS",
    "TRACE",
    "TRAJECTORY",
    "WEIGHTS",
    "Run",
    "RunConfig",
    "Status",
    "Which",
    "model_digest",
    "note_written",
    "read",
    "read_metrics",
    "read_status",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "grbm.runs.claiming": ["note_written"],
        "grbm.runs.config": ["RunConfig", "Which"],
        "grbm.runs.folder": [
            "CHECKPOINTS",
            "CODES",
            "CONFIG",
            "DATA",
            "EVALUATION",
            "FID",
            "FIGURES",
            "IMPUTED",
            "METRICS",
            "MIXING",
            "RAW_WEIGHTS",
            "REPORT",
            "SAMPLES",
            "STATUS",
            "TRACE",
            "TRAJECTORY",
            "WEIGHTS",
            "Run",
            "Status",
            "model_digest",
            "read",
            "read_metrics",
            "read_status",
        ],
    },
    ["checkpoint", "config", "folder", "presets", "sampling", "training"],
)
