"""Untrusted text made safe to show, and to type."""

import json

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runtime.sanitize import (
    format_command,
    holds_credentials,
    redact_secrets,
    redact_uri,
    sanitize_json,
    sanitize_line,
    sanitize_lines,
    sanitize_page_text,
    truncate_text,
)
from tests.texts import HOSTILE, chance

BAD = "\N{REPLACEMENT CHARACTER}"
TURNED = "\u202egnp.exe\u2066 \u2028new\u2029"


@pytest.mark.parametrize(
    ("text", "sanitized"),
    [
        ("a\x00b", f"a{BAD}b"),
        ("\x9b2J\x7f", f"{BAD}2J{BAD}"),
        ("", ""),
    ],
)
def test_control_characters_are_replaced_and_nothing_else_changes(
    text: str, sanitized: str
) -> None:
    assert sanitize_page_text(text) == sanitize_line(text) == sanitize_lines(text) == sanitized


def test_text_is_not_reordered_on_a_terminal() -> None:
    assert sanitize_line(TURNED) == f"{BAD}gnp.exe{BAD} {BAD}new{BAD}"
    assert sanitize_page_text(TURNED) == TURNED  # a page isolates it


@pytest.mark.parametrize("text", [*HOSTILE, "\x1b[2J\x9b31m\x7f", "\ud800"])
def test_json_means_the_same_and_shows_no_control_character(text: str) -> None:
    sanitized = sanitize_json(json.dumps({"text": text}, ensure_ascii=False, indent=1))
    assert json.loads(sanitized) == {"text": text}
    assert sanitize_lines(sanitized) == sanitized


def test_long_text_is_cut_and_says_by_how_much() -> None:
    assert truncate_text("x" * 10, 10) == "x" * 10
    assert truncate_text("x" * 1_000_003, 3) == "xxx… and 1,000,000 more characters"


def test_an_error_is_a_line_whatever_it_quotes() -> None:
    forged = BadInput("s3://bucket/\x1b[2K\rrun\nFinished: all is well: names no run. Look again.")
    assert (
        str(forged)
        == f"s3://bucket/{BAD}[2K{BAD}run{BAD}Finished: all is well: names no run. Look again."
    )


def test_a_password_of_any_characters_is_known_as_such_and_not_shown() -> None:
    for number in range(2000):
        dice = chance(number)
        password = "".join(dice.choices("wJalrXUtnFEMIK7/+=%:@!$&*~", k=dice.randrange(8, 60)))
        uri = f"{dice.choice(['s3', 'https', 'HTTP'])}://user:A{password}@host/a.csv"
        assert holds_credentials(uri)
        shown = redact_uri(uri) + str(BadInput(f"{uri} is gone."))
        pieces = [password[place : place + 8] for place in range(len(password) - 7)]
        assert not any(piece in shown for piece in pieces), uri


@pytest.mark.parametrize(
    "uri",
    [
        "s3://user:12/ab@host/f",  # a bucket has no port
        # more than any port
        "https://token@host/f",
        "https://host/f?page_token_secret=ab",
    ],
)
def test_a_credential_that_resembles_something_else_is_one(uri: str) -> None:
    assert holds_credentials(uri)
    for shown in (redact_uri(uri), str(BadInput(f"{uri} is gone."))):
        assert "ab" not in shown
        assert "token@" not in shown


@pytest.mark.parametrize(
    "uri",
    [
        "https://host:9000/a@b/f",
        "sftp://user@host/f",
        "https://host/f?nextPageToken=1&continuation-token=2",
    ],
)
def test_a_name_a_port_or_a_page_is_no_credential(uri: str) -> None:
    assert not holds_credentials(uri)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at 1https://me:hush@host/a: gone", "at 1https://***@host/a: gone"),
        ("url=api_key=hush&b=1", "url=api_key=***&b=1"),
        ("secrets of tokens", "secrets of tokens"),
    ],
)
def test_a_secret_in_a_text_is_not_shown(text: str, shown: str) -> None:
    assert redact_secrets(text) == shown


def test_a_command_names_a_run_by_one_word_that_is_no_option() -> None:
    assert format_command("verify", "it's; a run") == """imagekiln verify 'it'"'"'s; a run'"""
    assert format_command("runs", "-out", "--json") == "imagekiln runs ./-out --json"
