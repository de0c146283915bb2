"""The public interface is the one that was reviewed: names, parameters, defaults."""

from dataclasses import FrozenInstanceError

import pytest

from grbm import CD, PCD, FitOptions, Gibbs, GibbsLangevin, Langevin, ModifiedCD, ParallelTempering, PartialGibbs
from tests.signatures import LIST, listed


def test_parameters_and_defaults_are_those_that_were_reviewed():
    """After a change on purpose: `uv run python -m tests.signatures`, and read the difference."""
    assert listed() == LIST.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "settings",
    [
        *(CD(Gibbs()), PCD(Gibbs()), ModifiedCD(Gibbs()), FitOptions(), Gibbs(), PartialGibbs(0.5), Langevin()),
        *(GibbsLangevin(), ParallelTempering()),
    ],
    ids=lambda x: type(x).__name__,
)
def test_settings_cannot_be_changed_where_they_are_shared(settings):
    with pytest.raises(FrozenInstanceError):
        settings.n_steps = 3
