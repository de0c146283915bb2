"""Errors whose text is one sentence for the user: what was wrong, where, and what to do."""


class UserError(ValueError):
    """Bad input; the command line prints the sentence and exits with code 2."""

    told = False  # whether another process of the same job tells the user


class DivergenceError(RuntimeError):
    """Training left the finite world; the message names the unit, the update and the remedy."""


class StoppedError(Exception):
    """Training was asked to stop, and did so cleanly; the message says how to go on.

    ``signal`` is the number of the signal that asked, or 0.
    """

    def __init__(self, message: str, signal: int = 0) -> None:
        super().__init__(message, signal)
        self.message, self.signal = message, signal

    def __str__(self) -> str:
        return self.message


class ScaleWarning(UserWarning):
    """The features given to the estimator are not standardised."""
