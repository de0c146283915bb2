"""The command line: thin, so that all it does can be done from Python too."""

from grbm.cli.main import main as main
