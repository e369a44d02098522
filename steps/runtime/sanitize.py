"""Untrusted text where people read it: nothing in it can move a cursor, forge a line, or turn a line around."""

import re
from shlex import quote

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# C0 and C1, such as those of ANSI codes, and lone surrogates, which no encoding has.
CONTROL_CHARS = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
# Line and paragraph separators, and what makes a terminal show text in another order than it has. A page isolates it.
SEPARATOR_AND_BIDI_CHARS = "\u2028\u2029\u202a-\u202e\u2066-\u2069"
UNSAFE_IN_PAGE = re.compile(f"[{CONTROL_CHARS}]")
UNSAFE_IN_LINE = re.compile(f"[{CONTROL_CHARS}{SEPARATOR_AND_BIDI_CHARS}]")
UNSAFE_IN_LINES = re.compile(f"(?!\n)[{CONTROL_CHARS}{SEPARATOR_AND_BIDI_CHARS}]")
UNSAFE_IN_JSON = re.compile(f"(?!\n)[\x7f-\x9f\ud800-\udfff{SEPARATOR_AND_BIDI_CHARS}]")


def sanitize_page_text(text: str) -> str:
    """The text for a page, which escapes and isolates it: without the control characters that no page may hold."""
    return UNSAFE_IN_PAGE.sub(REPLACEMENT, text)


def sanitize_line(text: str) -> str:
    """The text as one line of a terminal or a log."""
    return UNSAFE_IN_LINE.sub(REPLACEMENT, text)


def sanitize_lines(text: str) -> str:
    """The text of several lines, whose line feeds are ours."""
    return UNSAFE_IN_LINES.sub(REPLACEMENT, text)


def sanitize_json(text: str) -> str:
    """The same JSON, its texts written so that a terminal may show it."""
    return UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def truncate_text(text: str, most: int) -> str:
    """The text, or its first `most` characters and how many more there are."""
    return text if len(text) <= most else f"{text[:most]}… and {len(text) - most:,} more characters"


def quote_shell_word(text: str) -> str:
    """The text as one word of a shell that is not taken for an option; signs that nobody sees are spelt out."""
    text = f"./{text}" if text.startswith("-") else text
    if not UNSAFE_IN_LINE.search(text):
        return quote(text)
    spelt = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{UNSAFE_IN_LINE.sub(lambda found: _escape_bytes(found[0]), spelt)}'"


def format_command(verb: str, run: str, *options: str) -> str:
    """The command that does this with the run."""
    return " ".join(("imagekiln", verb, quote_shell_word(run), *options))


def _escape_bytes(sign: str) -> str:
    # A byte of a file's name that is no UTF-8 is a lone surrogate in ours.
    return "".join(f"\\x{byte:02x}" for byte in sign.encode(errors="surrogateescape"))
