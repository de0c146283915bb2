"""Errors whose text is one sentence for the user: what was wrong, where, and what to do."""


class UserError(ValueError):
    """Bad input; the command line prints the sentence and exits with code 2."""


class DivergenceError(RuntimeError):
    """Training left the finite world; the message names the unit, the update and the remedy."""
