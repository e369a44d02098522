"""Sanitizing of untrusted strings: they cannot move a cursor, or forge or reorder a line.

Messages to the outside, such as a chat, are also stripped of credentials.
"""

import re
from collections.abc import Iterable
from shlex import quote

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
RETURN_SYMBOL = " \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} "
TAB_SYMBOL = " \N{RIGHTWARDS ARROW TO BAR} "
LINE_BREAK = re.compile(r"\r\n|\n|\r")
# C0 and C1 controls, such as ANSI escapes, and lone surrogates, which cannot be encoded.
CONTROL_CHARS = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
# Line and paragraph separators, and controls that reorder text on a terminal. They are harmless on
# a page, which isolates its strings.
SEPARATOR_AND_BIDI_CHARS = "\u2028\u2029\u202a-\u202e\u2066-\u2069"
UNSAFE_IN_PAGE = re.compile(f"[{CONTROL_CHARS}]")
UNSAFE_IN_LINE = re.compile(f"[{CONTROL_CHARS}{SEPARATOR_AND_BIDI_CHARS}]")
UNSAFE_IN_LINES = re.compile(f"(?!\n)[{CONTROL_CHARS}{SEPARATOR_AND_BIDI_CHARS}]")
UNSAFE_IN_JSON = re.compile(f"(?!\n)[\x7f-\x9f\ud800-\udfff{SEPARATOR_AND_BIDI_CHARS}]")

HIDDEN = "***"
MIN_SECRET_CHARS = 8  # a shorter value would be replaced in ordinary words
# User and password, or user, up to the last @ of a URL, since AWS passwords may contain slashes.
# Resource names (arn:), IPv6 addresses and anything after a port do not match.
USER = re.compile(r"(?!arn:)(?:[^/:@\[]+:.+|[^/]+)@", re.DOTALL)
HOST_WITH_PORT = re.compile(r"[^/:@\[]+:\d{1,5}/")
BUCKET_SCHEMES = {"s3", "s3a", "gs", "gcs"}  # these have no ports
# Up to the next space or quotation mark. The scheme's length is bounded, since input may be long.
URL = re.compile(r"[a-z0-9+.-]{1,32}://[^\s\"']+", re.IGNORECASE)
# NAME=VALUE, and "name": "value" in JSON.
NAMED_SECRET = re.compile(
    r"(?<![\w-])(?=[\w-]*?"
    r"(?:secret|token|passw(?:or)?d|signature|api[_-]?key|access[_-]?key|credential))"
    r"([\w-]++(?:=|[\"']\s*:\s*)[\"']?)[^\s\"',;&]+",
    re.IGNORECASE,
)
# In these schemes, the name before an @ is part of the location.
SCHEMES_WITH_NAMES = {"abfs", "abfss", "az", "github"}
# In these, it is a user name. In others, such as https, it may be a token.
SCHEMES_WITH_USERS = {"hdfs", "sftp", "smb", "ssh"}
SECRET_NAME = re.compile(
    r"secret|token|passw|signature|credential|api[_-]?key|access[_-]?key|^(sig|key)$", re.IGNORECASE
)
# Continuation tokens of listings, which are not secret.
PAGE_TOKEN = re.compile(r"(?:page|next|continuation)[_-]?token$", re.IGNORECASE)
HTTP_CREDENTIALS = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}")
# Tokens of the model hub, AWS, Slack and GitHub, known by their prefix.
KNOWN_TOKEN = re.compile(
    r"\b(?:hf_|xox[abeprs]-|gh[opsu]_|(?:AKIA|ASIA)(?=[A-Z0-9]{16}\b))[\w-]{8,}"
)


def sanitize_page_text(value: str) -> str:
    """Remove control characters from a string, for a page that escapes and isolates it.

    The result is one line: a line feed becomes a return symbol, and a tab becomes a tab symbol.
    """
    one_line = LINE_BREAK.sub(RETURN_SYMBOL, value).replace("\t", TAB_SYMBOL)
    return UNSAFE_IN_PAGE.sub(REPLACEMENT, one_line)


def sanitize_line(value: str) -> str:
    """Format a string as one line of a terminal or a log."""
    return UNSAFE_IN_LINE.sub(REPLACEMENT, value)


def sanitize_lines(value: str) -> str:
    """Format a string as lines of a terminal or a log, if its line feeds can be trusted."""
    return UNSAFE_IN_LINES.sub(REPLACEMENT, value)


def sanitize_json(value: str) -> str:
    """Escape unsafe characters in JSON strings, so that a terminal can show the JSON."""

    def escape(match: re.Match[str]) -> str:
        return f"\\u{ord(match[0]):04x}"

    return UNSAFE_IN_JSON.sub(escape, value)


def truncate_text(value: str, most: int) -> str:
    """Return at most `most` characters of a string, and say how many more it has."""
    rest = len(value) - most
    if rest <= 0:
        return value
    return f"{value[:most]}… and {rest:,} more characters"


def holds_credentials(uri: str) -> bool:
    """Return whether a URI has a user or password, or a query that is signed or names a secret."""
    chain = uri.split("::")  # of fsspec file systems, unless part of a password
    return any(map(_url_holds_credentials, [uri, *chain]))


def _url_holds_credentials(uri: str) -> bool:
    scheme, separator, rest = uri.partition("://")
    place, _, query = rest.partition("?")
    user = _find_user(scheme.lower(), place)
    has_user = user is not None and (":" in user[0] or scheme.lower() not in SCHEMES_WITH_USERS)
    return bool(separator) and (has_user or _names_secret(query))


def _find_user(scheme: str, place: str) -> re.Match[str] | None:
    """Match the user in the part of a URI after the scheme."""
    has_port = scheme not in BUCKET_SCHEMES and HOST_WITH_PORT.match(place)
    if scheme in SCHEMES_WITH_NAMES or has_port:
        return None
    return USER.match(place)


def _names_secret(query: str) -> bool:
    names = [pair.partition("=")[0] for pair in re.split("[&;]", query)]
    return any(SECRET_NAME.search(name) and not PAGE_TOKEN.search(name) for name in names)


def redact_uri(uri: str) -> str:
    """Replace possible credentials in a URI by `***`, even with unusual characters."""
    scheme, separator, rest = uri.partition("://")
    place, mark, query = rest.partition("?")
    user = _find_user(scheme.lower(), place)
    if user is not None:
        place = f"{HIDDEN}@{place[user.end() :]}"
    if query and (scheme.lower().endswith(("http", "https")) or _names_secret(query)):
        query = HIDDEN
    return f"{scheme}{separator}{place}{mark}{query}"


def redact_urls(message: str) -> str:
    """Replace users, passwords and queries in URLs by `***`."""
    return URL.sub(lambda url: redact_uri(url[0]), message)


def redact_secrets(message: str, values: Iterable[str] = ()) -> str:
    """Replace these values, and any string that looks like a credential, by `***`.

    Hosts and paths of URLs remain.
    """
    for value in values:
        if len(value) >= MIN_SECRET_CHARS:
            message = message.replace(value, HIDDEN)
    message = redact_urls(message)
    message = NAMED_SECRET.sub(rf"\1{HIDDEN}", message)
    message = HTTP_CREDENTIALS.sub(rf"\1 {HIDDEN}", message)
    return KNOWN_TOKEN.sub(HIDDEN, message)


def format_command(verb: str, run: str, *options: str) -> str:
    """Format the command line that applies a verb to a run."""
    name = f"./{run}" if run.startswith("-") else run  # not an option
    return " ".join(["imagekiln", verb, quote(name), *options])
