"""The wording of messages is the one that was reviewed."""

from tests.messages import LIST, listed, messages


def test_messages_are_worded_as_they_were_reviewed():
    """After a change on purpose: `uv run python -m tests.messages`, and read the difference."""
    assert listed() == LIST.read_text(encoding="utf-8")


def test_messages_are_found():
    """Or the test above would hold whatever is said."""
    said = list(messages())
    assert len(said) > 250
    assert {module.partition("/")[0] for module, _ in said} >= {
        "cli",
        "data",
        "evaluate",
        "runs",
        "samplers",
        "model",
    }
