"""Errors as sentences."""

from imagekiln.steps.errors import first_line


def test_a_long_message_is_cut_to_its_first_line() -> None:
    assert first_line("first\nsecond") == "first"
    assert first_line("x" * 5000) == "x" * 200
    assert first_line("") == first_line("\nsecond") == ""
