"""Untrusted text made safe to show: it cannot move a cursor, forge a line, or reorder one.

What goes to people outside, such as a chat, is also stripped of credentials.
"""

import re
from collections.abc import Iterable
from shlex import quote

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
RETURN_SYMBOL = " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "
TAB_SYMBOL = " \N{RIGHTWARDS ARROW TO BAR} "
LINE_BREAK = re.compile(r"\r\n|\n|\r")
# C0 and C1, such as those of ANSI escapes, and lone surrogates, which cannot be encoded.
CONTROL_CHARS = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
# Line and paragraph separators, and the controls that reorder text on a terminal. A page isolates
# its texts, so that these are harmless there.
SEPARATOR_AND_BIDI_CHARS = "\u2028\u2029\u202a-\u202e\u2066-\u2069"
UNSAFE_IN_PAGE = re.compile(f"[{CONTROL_CHARS}]")
UNSAFE_IN_LINE = re.compile(f"[{CONTROL_CHARS}{SEPARATOR_AND_BIDI_CHARS}]")
UNSAFE_IN_LINES = re.compile(f"(?!\n)[{CONTROL_CHARS}{SEPARATOR_AND_BIDI_CHARS}]")
UNSAFE_IN_JSON = re.compile(f"(?!\n)[\x7f-\x9f\ud800-\udfff{SEPARATOR_AND_BIDI_CHARS}]")

HIDDEN = "***"
MIN_SECRET_CHARS = 8  # a shorter value would be replaced in ordinary words
# A name and a password, or a name, up to the last @ of a URL. Half of AWS's passwords have a slash.
# The name of a resource (arn:) and the address of IPv6 are none, nor is what follows a port.
USER = re.compile(r"(?!arn:)(?:[^/:@\[]+:.+|[^/]+)@", re.DOTALL)
HOST_WITH_PORT = re.compile(r"[^/:@\[]+:\d{1,5}/")
BUCKET_SCHEMES = {"s3", "s3a", "gs", "gcs"}  # which have no ports
# Up to the next space or quotation mark. The length of a scheme is bounded: texts may be long.
URL = re.compile(r"[a-z0-9+.-]{1,32}://[^\s\"']+", re.IGNORECASE)
# NAME=VALUE, and "name": "value" as in JSON.
NAMED_SECRET = re.compile(
    r"(?<![\w-])(?=[\w-]*?"
    r"(?:secret|token|passw(?:or)?d|signature|api[_-]?key|access[_-]?key|credential))"
    r"([\w-]++(?:=|[\"']\s*:\s*)[\"']?)[^\s\"',;&]+",
    re.IGNORECASE,
)
# In URLs of these schemes, the name before an @ is part of the place.
SCHEMES_WITH_NAMES = {"abfs", "abfss", "az", "github"}
# In these, it is that of a user; of others, such as https, it may be a token.
SCHEMES_WITH_USERS = {"hdfs", "sftp", "smb", "ssh"}
SECRET_NAME = re.compile(
    r"secret|token|passw|signature|credential|api[_-]?key|access[_-]?key|^(sig|key)$", re.IGNORECASE
)
# Where a listing goes on, which is no secret.
PAGE_TOKEN = re.compile(r"(?:page|next|continuation)[_-]?token$", re.IGNORECASE)
HTTP_CREDENTIALS = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}")
# Of the model hub, AWS, Slack and GitHub: they are known by their beginning.
KNOWN_TOKEN = re.compile(
    r"\b(?:hf_|xox[abeprs]-|gh[opsu]_|(?:AKIA|ASIA)(?=[A-Z0-9]{16}\b))[\w-]{8,}"
)


def sanitize_page_text(text: str) -> str:
    """The text without control characters, for a page that escapes and isolates it.

    It stays on one line: a line feed becomes a return symbol, and a tab that of its key.
    """
    one_line = LINE_BREAK.sub(RETURN_SYMBOL, text).replace("\t", TAB_SYMBOL)
    return UNSAFE_IN_PAGE.sub(REPLACEMENT, one_line)


def sanitize_line(text: str) -> str:
    """The text as one line of a terminal or a log."""
    return UNSAFE_IN_LINE.sub(REPLACEMENT, text)


def sanitize_lines(text: str) -> str:
    """The text as lines of a terminal or a log, if its line feeds can be trusted."""
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


def holds_credentials(uri: str) -> bool:
    """Say if a URI has a user or password in it, or a query that is signed or names a secret."""
    chain = uri.split("::")  # of fsspec's file systems, if it is no part of a password
    return any(map(_url_holds_credentials, [uri, *chain]))


def _url_holds_credentials(uri: str) -> bool:
    scheme, separator, rest = uri.partition("://")
    place, _, query = rest.partition("?")
    user = _find_user(scheme.lower(), place)
    has_user = user is not None and (":" in user[0] or scheme.lower() not in SCHEMES_WITH_USERS)
    return bool(separator) and (has_user or _names_secret(query))


def _find_user(scheme: str, place: str) -> re.Match[str] | None:
    """The user in what follows the scheme of a URI."""
    has_port = scheme not in BUCKET_SCHEMES and HOST_WITH_PORT.match(place)
    if scheme in SCHEMES_WITH_NAMES or has_port:
        return None
    return USER.match(place)


def _names_secret(query: str) -> bool:
    names = [pair.partition("=")[0] for pair in re.split("[&;]", query)]
    return any(SECRET_NAME.search(name) and not PAGE_TOKEN.search(name) for name in names)


def redact_uri(uri: str) -> str:
    """The URI with `***` for what may be a credential in it, whatever characters that has."""
    scheme, separator, rest = uri.partition("://")
    place, mark, query = rest.partition("?")
    user = _find_user(scheme.lower(), place)
    if user is not None:
        place = f"{HIDDEN}@{place[user.end() :]}"
    if query and (scheme.lower().endswith(("http", "https")) or _names_secret(query)):
        query = HIDDEN
    return f"{scheme}{separator}{place}{mark}{query}"


def redact_urls(text: str) -> str:
    """The text with `***` for users, passwords and queries in its URLs."""
    return URL.sub(lambda url: redact_uri(url[0]), text)


def redact_secrets(text: str, values: Iterable[str] = ()) -> str:
    """The text with `***` for what looks like a credential, and for these values.

    Of a URL with credentials, the host and the path stay.
    """
    for value in values:
        if len(value) >= MIN_SECRET_CHARS:
            text = text.replace(value, HIDDEN)
    text = redact_urls(text)
    text = NAMED_SECRET.sub(rf"\1{HIDDEN}", text)
    text = HTTP_CREDENTIALS.sub(rf"\1 {HIDDEN}", text)
    return KNOWN_TOKEN.sub(HIDDEN, text)


def format_command(verb: str, run: str, *options: str) -> str:
    """The command line that applies a verb to a run."""
    name = f"./{run}" if run.startswith("-") else run  # it is no option
    return " ".join(["imagekiln", verb, quote(name), *options])
