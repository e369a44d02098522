"""Errors as sentences."""

from imagekiln.steps.errors import BadInput, first_line


def test_a_long_message_is_cut_to_its_first_line() -> None:
    assert first_line("first\nsecond") == "first"
    assert first_line("x" * 5000) == "x" * 200
    assert first_line("") == first_line("\nsecond") == ""


def test_a_sentence_is_of_bounded_length_and_shows_no_credentials_of_a_url() -> None:
    uri = "https://user:word@host/p.csv?sig=wJalr"
    assert str(BadInput(f"{uri} is gone.")) == "https://***@host/p.csv?*** is gone."
    assert str(BadInput("s3://b/part-?.csv: 'passwd': is gone.")) == (
        "s3://b/part-?.csv: 'passwd': is gone."
    )
    assert len(str(BadInput("x" * 10**6))) < 2100


def test_of_a_sentence_that_is_too_long_what_to_do_is_kept() -> None:
    text = str(BadInput(f"a.parquet: {'x' * 10**6} is no name. Choose another one."))
    assert text.startswith("a.parquet: xxx")
    assert text.endswith("is no name. Choose another one.")
