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
# What stands before the last @ of a URL: a name and a password, or a name. Half of AWS's have a
# slash, but a port, the name of a resource (arn:) and the address of IPv6 are no passwords.
USERINFO = r"(?:(?!arn:){but_no}[^/:@\[{more}]+:[^\0{more}]+|[^/{more}]+)@"
PORT = r"(?![^/:@\[]+:\d{1,5}/)"
USER_OF_URL = re.compile(r"\A" + USERINFO.format(but_no=PORT, more=""))
# Buckets have no ports.
BUCKET_SCHEMES = {"s3", "s3a", "gs", "gcs"}
USER_OF_BUCKET = re.compile(r"\A" + USERINFO.format(but_no="", more=""))
# Texts may be long and a stranger's: no pattern looks from more and more places for the same end.
WORD = re.compile(r"[^\s\"']+")
# The same in a word, up to its last @. The name before the @ in Azure's is part of the place.
URL_USER = re.compile(
    r"(?<![a-z0-9+.-])"
    r"([0-9+.-]*(?!abfss?:|az:)(?:(?P<bucket>s3a?|gs|gcs)|[a-z][a-z0-9+.-]*)://)"
    + USERINFO.format(but_no=f"(?(bucket)|{PORT})", more=r"\s\"'"),
    re.IGNORECASE,
)
# The query of a URL, which holds the signature where there is one. Elsewhere, `?` is of a pattern.
URL_QUERY = re.compile(r"(https?://[^?#\s\"']+)(\?[^\s\"'<>]+)?", re.IGNORECASE)
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
    if not separator:
        return False
    place, _, query = rest.partition("?")
    names = (pair.partition("=")[0] for pair in re.split("[&;]", query))
    return _has_credentials(scheme.lower(), place) or any(map(_is_secret_name, names))


def _has_credentials(scheme: str, place: str) -> bool:
    user = _user_pattern(scheme).match(place)
    if user is None or scheme in SCHEMES_WITH_NAMES:
        return False
    return ":" in user[0] or scheme not in SCHEMES_WITH_USERS


def _user_pattern(scheme: str) -> re.Pattern[str]:
    return USER_OF_BUCKET if scheme in BUCKET_SCHEMES else USER_OF_URL


def _is_secret_name(name: str) -> bool:
    return bool(SECRET_NAME.search(name)) and not PAGE_TOKEN.search(name)


def redact_uri(uri: str) -> str:
    """The URI with `***` for what may be a credential in it, whatever characters that has."""
    scheme, separator, rest = uri.partition("://")
    place, mark, query = rest.partition("?")
    if scheme.lower() not in SCHEMES_WITH_NAMES:
        place = _user_pattern(scheme.lower()).sub(f"{HIDDEN}@", place)
    return f"{scheme}{separator}{place}{mark}{query and HIDDEN}"


def redact_urls(text: str) -> str:
    """The text with `***` for users, passwords and queries in its URLs."""
    text = WORD.sub(_redact_users, text)
    return URL_QUERY.sub(_redact_query, text)


def _redact_users(word: re.Match[str]) -> str:
    urls, at, rest = word[0].rpartition("@")
    return URL_USER.sub(rf"\1{HIDDEN}@", urls + at) + rest


def _redact_query(url: re.Match[str]) -> str:
    return f"{url[1]}?{HIDDEN}" if url[2] else url[0]


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
