from imagekiln.steps.errors import first_line


def test_a_long_message_is_told_by_its_beginning() -> None:
    assert first_line("first\nsecond") == "first"
    assert first_line("x" * 5000) == "x" * 200
    assert first_line("") == first_line("\nsecond") == ""
