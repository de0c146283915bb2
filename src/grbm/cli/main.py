"""The command line: which command it is, and how it ends. Each is a few lines that parse, call and print."""

import os
import sys
from collections.abc import Callable, Sequence

from grbm import __version__
from grbm.cli import judging, reproducing, showing, training, using
from grbm.errors import DivergenceError, StoppedError, UserError

USAGE = """\
grbm: Gaussian-Bernoulli restricted Boltzmann machines

  grbm train PRESET      learn a data set; writes a run folder with weights, metrics and figures
  grbm resume RUN        go on where a run was stopped or killed
  grbm sample RUN        draw samples from noise, as numbers and as a picture
  grbm encode RUN WHAT   binary codes of data: hidden probabilities or drawn bits
  grbm impute RUN FILE   fill in what is missing of an array, or take noise away
  grbm export RUN OUT    for other programs: ONNX, torch.export, or a folder of weights
  grbm evaluate RUN      likelihoods, reconstruction, free energies; for mixtures exact scores
  grbm mixing RUN        do its chains mix? R-hat, effective sample size, swap rates
  grbm doctor RUN        what is wrong with a run, or fine, and what to change
  grbm figures RUN       draw the run's figures again
  grbm report RUN        a page of it all, to look at and to pass on
  grbm compare RUN RUN   runs side by side, in the terminal and on a page
  grbm reproduce WHAT    a figure or table of the paper: fig1 to fig9, table1 to table3

Start with `grbm train digits` (half a minute at most). Every command explains itself with --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 (a run diverged), 2 (bad input), 130 or 143 (stopped by a signal)."""
    args = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": training.train,
        "resume": training.resume,
        "sample": using.sample,
        "encode": using.encode,
        "impute": using.impute,
        "export": using.export,
        "evaluate": judging.evaluate,
        "mixing": judging.mixing,
        "doctor": judging.doctor,
        "figures": showing.figures,
        "report": showing.report,
        "compare": showing.compare,
        "reproduce": reproducing.reproduce,
    }
    if args[:1] == ["--version"]:
        print(f"grbm {__version__}")
        return 0
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    try:
        if args[0] not in commands:
            raise UserError(f"There is no command {args[0]!r}; choose one of {', '.join(commands)}.")
        commands[args[0]](args[1:])
    except UserError as error:
        if not error.told:
            print(f"grbm: {error}", file=sys.stderr)
        return 2
    except (DivergenceError, StoppedError) as error:
        if os.environ.get("RANK", "0") == "0":  # all processes of a job come here together
            print(f"grbm: {error}", file=sys.stderr)
        return 1 if isinstance(error, DivergenceError) else 128 + error.signal
    except OSError as error:
        if not getattr(error, "told", False):
            print(f"grbm: {error}; check the path, its permissions and the space on the disk.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("grbm: interrupted.", file=sys.stderr)
        return 130
    return 0
