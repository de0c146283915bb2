"""Printing that shows no control characters, fits every encoding, and never ends a program whose reader has left."""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

TURNS = (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))  # end a line, or turn text around
CONTROLS = {code: ascii(chr(code))[1:-1] for code in (*range(32), *range(127, 160), *TURNS)}
IN_TEXT = {code: shown for code, shown in CONTROLS.items() if chr(code) not in "\n\t"}
LEFT = {errno.EPIPE, errno.EIO, errno.ECONNRESET}  # a pipe, a terminal or a connection that nobody reads any more
LEFT |= {errno.EINVAL} if os.name == "nt" else set()  # a pipe, on Windows


def plain(text: str) -> str:
    """``text``, such as a name in a file, in one line: control characters are written out, such as ``\\x1b``."""
    return text.translate(CONTROLS)


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> Iterator[str]:
    """A table as lines of text; with ``numbers`` all columns but the first end at their right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sides = ["<", *(">" if numbers else "<" for _ in row[1:])]
        cells = (f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True))
        yield "  ".join(cells).rstrip()


class Stream:
    """A text stream that takes everything and raises nothing.

    Control characters but line feeds and tabs are written out, characters that its encoding lacks become question
    marks, and after the first error that the system reports, its ``failure``, everything is dropped. Escape sequences
    pass if it is ``formatted``, for a progress bar on a terminal.
    """

    def __init__(self, stream: Any, *, formatted: bool = False) -> None:
        self.stream, self.formatted = stream, formatted
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        shown = text if self.formatted else text.translate(IN_TEXT)
        encoding = self.stream.encoding or "utf-8"
        shown = shown.encode(encoding, "replace").decode(encoding)
        self._attempt(lambda: self.stream.write(shown))
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def isatty(self) -> bool:
        """Whether escape sequences have an effect."""
        return self.formatted and bool(self.stream.isatty())

    def _attempt(self, action: Callable[[], object]) -> None:
        if self.failure is not None:
            return
        try:
            action()
        except OSError as error:
            self.failure = error
            with suppress(OSError):  # what lies in its buffer would raise once more when the program ends
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.stream.fileno())
                os.close(nowhere)


def terminal() -> Stream | None:
    """Standard output for what draws on a terminal by escape sequences of its own; None where it is closed."""
    stream = getattr(sys.stdout, "stream", sys.stdout)
    return None if stream is None else Stream(stream, formatted=True)


@contextmanager
def printing() -> Iterator[Callable[[], OSError | None]]:
    """Print through `Stream` inside the block; yields a function that flushes, and returns why output was lost.

    A reader who left wanted no more, so nothing is lost then.
    """
    before = sys.stdout, sys.stderr
    streams = [stream if stream is None or isinstance(stream, Stream) else Stream(stream) for stream in before]

    def lost() -> OSError | None:
        for stream in filter(None, streams):
            stream.flush()
        failure = streams[0].failure if isinstance(streams[0], Stream) else None
        return None if failure is None or failure.errno in LEFT else failure

    sys.stdout, sys.stderr = streams
    try:
        yield lost
    finally:
        lost()
        sys.stdout, sys.stderr = before
