"""A plugin of pytest: run the tests that a file names, in its order, and no others."""

import json
import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests listed in the file ``$GRBM_CHOSEN_TESTS``."""
    order = {name: k for k, name in enumerate(json.loads(Path(os.environ["GRBM_CHOSEN_TESTS"]).read_text()))}
    items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
