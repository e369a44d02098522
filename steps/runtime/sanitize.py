"""Untrusted text made safe to show: it cannot move a cursor, forge a line, or reorder one."""

import re
from shlex import quote

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# C0 and C1, such as those of ANSI escapes, and lone surrogates, which cannot be encoded.
CONTROL_CHARS = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
# Line and paragraph separators, and the controls that reorder text on a terminal. A page isolates
# its texts, so that these are harmless there.
SEPARATOR_AND_BIDI_CHARS = "\u2028\u2029\u202a-\u202e\u2066-\u2069"
UNSAFE_IN_PAGE = re.compile(f"[{CONTROL_CHARS}]")
UNSAFE_IN_LINE = re.compile(f"[{CONTROL_CHARS}{SEPARATOR_AND_BIDI_CHARS}]")
UNSAFE_IN_LINES = re.compile(f"(?!\n)[{CONTROL_CHARS}{SEPARATOR_AND_BIDI_CHARS}]")
UNSAFE_IN_JSON = re.compile(f"(?!\n)[\x7f-\x9f\ud800-\udfff{SEPARATOR_AND_BIDI_CHARS}]")


def sanitize_page_text(text: str) -> str:
    """The text without control characters, for a page that escapes and isolates it."""
    return UNSAFE_IN_PAGE.sub(REPLACEMENT, text)


def sanitize_line(text: str) -> str:
    """The text as one line of a terminal or a log."""
    return UNSAFE_IN_LINE.sub(REPLACEMENT, text)


def sanitize_lines(text: str) -> str:
    """The text as lines of a terminal or a log, where its line feeds can be trusted."""
    return UNSAFE_IN_LINES.sub(REPLACEMENT, text)


def sanitize_json(text: str) -> str:
    """Equal JSON that is safe on a terminal: unsafe characters in its strings are escaped."""

    def escape(match: re.Match[str]) -> str:
        return f"\\u{ord(match[0]):04x}"

    return UNSAFE_IN_JSON.sub(escape, text)


def truncate_text(text: str, most: int) -> str:
    """The text, or its first `most` characters and how many more it has."""
    rest = len(text) - most
    if rest <= 0:
        return text
    return f"{text[:most]}… and {rest:,} more characters"


def quote_shell_word(text: str) -> str:
    """The text as one word of bash that is not an option, with invisible characters escaped."""
    if text.startswith("-"):
        text = f"./{text}"
    if not UNSAFE_IN_LINE.search(text):
        return quote(text)
    text = text.replace("\\", "\\\\")
    text = text.replace("'", "\\'")
    text = UNSAFE_IN_LINE.sub(_escape_bytes, text)
    return f"$'{text}'"


def format_command(verb: str, run: str, *options: str) -> str:
    """The command line that applies a verb to a run."""
    words = ["imagekiln", verb, quote_shell_word(run)]
    words += options
    return " ".join(words)


def _escape_bytes(match: re.Match[str]) -> str:
    # Python reads a byte of a file name that is not UTF-8 as a lone surrogate.
    encoded = match[0].encode(errors="surrogateescape")
    return "".join(f"\\x{byte:02x}" for byte in encoded)
