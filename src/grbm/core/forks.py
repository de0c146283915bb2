"""Forked processes compute with one thread: OpenMP's threads do not survive a fork, and would be waited for.

PyTorch's, those of code compiled here, and those of scikit-learn's k-means.
"""

import os
import sys

import torch

is_child = False


def _go_on_alone() -> None:
    """Limit a forked child to one thread."""
    global is_child
    is_child = True
    torch.set_num_threads(1)
    if (threadpoolctl := sys.modules.get("threadpoolctl")) is not None:
        threadpoolctl.threadpool_limits(1, user_api="openmp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_go_on_alone)
