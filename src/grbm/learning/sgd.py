"""`torch.optim.SGD` that does not load PyTorch's compiler, which takes longer than many a fit."""

from collections.abc import Callable
from typing import Any

from torch.optim import SGD
from torch.optim.optimizer import Optimizer


def _without_message(method: Callable[..., Any]) -> Any:
    return getattr(method, "__wrapped__", method)


class PlainSGD(SGD):
    """`torch.optim.SGD` in all but the seconds that making the first one takes.

    PyTorch tells its compiler to leave four methods of every optimizer alone, and to say so imports it
    (``torch._dynamo``) at their first call. These are the same methods without the message.
    """

    add_param_group = _without_message(Optimizer.add_param_group)
    state_dict = _without_message(Optimizer.state_dict)
    load_state_dict = _without_message(Optimizer.load_state_dict)
    zero_grad = _without_message(Optimizer.zero_grad)
