"""The names of the commands, and what somebody may have meant who wrote another one."""

import difflib
from collections.abc import Sequence

COMMANDS = {  # by the module of this folder that has them, imported when one is called
    "training": ("train", "resume"),
    "using": ("sample", "encode", "impute", "export"),
    "judging": ("evaluate", "mixing", "doctor"),
    "showing": ("figures", "report", "compare", "list"),
    "reproducing": ("reproduce",),
    "completing": ("completion",),
}


def close(word: str, known: Sequence[str]) -> str:
    """The end of a sentence: the known words that are close to ``word``, if there are any."""
    near = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else "."
