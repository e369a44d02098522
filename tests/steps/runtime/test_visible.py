"""Untrusted text where people read it."""

import json

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runtime.sanitize import (
    sanitize_json,
    sanitize_line,
    sanitize_lines,
    sanitize_page_text,
    truncate_text,
)
from tests.texts import HOSTILE

BAD = "\N{REPLACEMENT CHARACTER}"
TURNED = "\u202egnp.exe\u2066 \u2028new\u2029"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x00b", f"a{BAD}b"),
        ("\x1b[31mred", f"{BAD}[31mred"),
        ("\x1b]8;;http://evil.example\x07", f"{BAD}]8;;http://evil.example{BAD}"),
        ("\x9b2J\x7f", f"{BAD}2J{BAD}"),
        ("half \ud83d of a pair", f"half {BAD} of a pair"),
        ("zażółć 画 👩‍🚀 עברית دائرة", "zażółć 画 👩‍🚀 עברית دائرة"),
        ("", ""),
    ],
)
def test_control_characters_are_made_visible_and_nothing_else_changes(
    text: str, shown: str
) -> None:
    assert sanitize_page_text(text) == sanitize_line(text) == sanitize_lines(text) == shown


def test_a_line_stays_a_line() -> None:
    assert sanitize_line("one\r\ntwo\tthree\n") == f"one{BAD}{BAD}two{BAD}three{BAD}"
    assert sanitize_lines("one\ntwo\r") == f"one\ntwo{BAD}"


def test_text_is_not_turned_around_on_a_terminal() -> None:
    assert sanitize_line(TURNED) == f"{BAD}gnp.exe{BAD} {BAD}new{BAD}"
    assert sanitize_page_text(TURNED) == TURNED  # a page isolates it


@pytest.mark.parametrize("text", [*HOSTILE, TURNED, "\x1b[2J\x9b31m\x7f", "\ud800"])
def test_json_means_the_same_and_shows_no_control_character(text: str) -> None:
    shown = sanitize_json(json.dumps({"text": text}, ensure_ascii=False, indent=1))
    assert json.loads(shown) == {"text": text}
    assert sanitize_lines(shown) == shown


@pytest.mark.parametrize("text", [*HOSTILE, "x" * 1_000_000])
def test_whatever_is_made_visible_can_be_encoded(text: str) -> None:
    assert sanitize_page_text(text + "\udfff").encode()
    assert len(sanitize_line(text).splitlines()) == 1


def test_long_text_is_cut_and_says_so() -> None:
    assert truncate_text("x" * 10, 10) == "x" * 10
    assert truncate_text("x" * 1_000_003, 3) == "xxx… and 1,000,000 more characters"


def test_an_error_is_a_line_whatever_it_quotes() -> None:
    forged = BadInput("s3://bucket/\x1b[2K\rrun\nFinished: all is well: names no run. Look again.")
    assert (
        str(forged)
        == f"s3://bucket/{BAD}[2K{BAD}run{BAD}Finished: all is well: names no run. Look again."
    )


def test_an_error_of_several_sentences_is_as_many_lines() -> None:
    assert str(BadInput("job.yaml:1: one\nforged.", "job.yaml:2: two.")).splitlines() == [
        f"job.yaml:1: one{BAD}forged.",
        "job.yaml:2: two.",
    ]
