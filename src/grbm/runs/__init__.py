"""A run: its configuration, its folder, training it, and what is done with one: samples, codes, gaps filled in."""

from typing import TYPE_CHECKING

from grbm.core.lazy import lazily

if TYPE_CHECKING:
    from grbm.runs.claiming import note_written as note_written, run_of as run_of
    from grbm.runs.config import RunConfig as RunConfig, Which as Which
    from grbm.runs.folder import CHECKPOINTS as CHECKPOINTS, CODES as CODES, CONFIG as CONFIG, DATA as DATA
    from grbm.runs.folder import EVALUATION as EVALUATION, FID as FID, FIGURES as FIGURES, IMPUTED as IMPUTED
    from grbm.runs.folder import METRICS as METRICS, MIXING as MIXING, RAW_WEIGHTS as RAW_WEIGHTS, REPORT as REPORT
    from grbm.runs.folder import (
        SAMPLES as SAMPLES,
        SCORES as SCORES,
        STATUS as STATUS,
        TRACE as TRACE,
        TRAJECTORY as TRAJECTORY,
    )
    from grbm.runs.folder import WEIGHTS as WEIGHTS, Run as Run, Status as Status
    from grbm.runs.folder import last_metrics as last_metrics, model_digest as model_digest, read as read
    from grbm.runs.folder import read_config as read_config, read_metrics as read_metrics, read_status as read_status

__getattr__, __dir__ = lazily(__name__)
