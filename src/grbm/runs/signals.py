"""What a run, or several, do when they are asked to stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_signals(react: Callable[[int], None]) -> Iterator[list[int]]:
    """Call ``react`` with the number of each SIGINT, SIGTERM and SIGHUP inside the block; yields those heard so far.

    A SIGHUP that is ignored, as under ``nohup``, stays so. Outside the main thread, whose signals they are, nothing is
    heard.
    """
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def hear(number: int, frame: object) -> None:
        heard.append(number)
        react(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
