"""The commands, and what somebody may have meant who wrote another word."""

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class Command(NamedTuple):
    """A command: its function in a module of this folder, what it takes, and what it does."""

    function: str
    takes: str
    does: str


COMMANDS = {
    "train": Command("training:train", "PRESET", "learn a data set; writes a run folder: weights, metrics, figures"),
    "resume": Command("training:resume", "RUN", "go on where a run was stopped or killed"),
    "list": Command("judging:list_runs", "", "the runs in a folder: how far they are, how near to the data"),
    "sample": Command("using:sample", "RUN", "draw samples from noise, as numbers and as a picture"),
    "encode": Command("using:encode", "RUN WHAT", "binary codes of data: hidden probabilities or drawn bits"),
    "impute": Command("using:impute", "RUN FILE", "fill in what is missing of an array, or take noise away"),
    "score": Command("using:score", "RUN FILE", "how likely each row of a table is, and what makes rows odd"),
    "export": Command("using:export", "RUN OUT", "for other programs: ONNX, torch.export, or a folder of weights"),
    "evaluate": Command("judging:evaluate", "RUN", "likelihoods, reconstruction, free energies; exact for mixtures"),
    "mixing": Command("judging:mixing", "RUN", "do its chains mix? R-hat, effective sample size, swap rates"),
    "doctor": Command("judging:doctor", "RUN", "what is wrong with a run, or fine, and what to change"),
    "figures": Command("judging:figures", "RUN", "draw the run's figures again"),
    "report": Command("judging:report", "RUN", "a page of it all, to look at and to pass on"),
    "compare": Command("judging:compare", "RUN RUN", "runs side by side, in the terminal and on a page"),
    "reproduce": Command("reproducing:reproduce", "WHAT", "the paper's results: fig1 to fig9, table1 to table3"),
    "completion": Command("completing:completion", "SHELL", "words for the tab key, in bash, zsh or fish"),
}


def close(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: the known words that are close to ``word``, if there are any."""
    near = difflib.get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else "."
