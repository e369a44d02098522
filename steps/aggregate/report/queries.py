"""SQL for DuckDB by which a reader of the report finds what the page has no room for."""

from collections.abc import Sequence
from glob import escape
from re import Match

from imagekiln.steps.aggregate.failures import FailureCause
from imagekiln.steps.errors import MAX_LINE_CHARS
from imagekiln.steps.runs.keys import MANIFEST_PATTERN
from imagekiln.steps.runtime.sanitize import UNSAFE_IN_LINE

KEY_COLUMNS = ("id", "input_row", "image_id")
TEXT_COLUMNS = ("prompt", "error")
S3_NOTE = "-- First, on S3: CREATE SECRET (TYPE s3, PROVIDER credential_chain);"


def failure_query(uri: str, cause: FailureCause, carry: Sequence[str]) -> str:
    """The query for all images of the run at `uri` that have this cause.

    `carry` names columns of the input to select too. The cause is the first line of an error.
    """
    columns = dict.fromkeys((*KEY_COLUMNS, *filter(str.isprintable, carry), *TEXT_COLUMNS))
    selected = ", ".join(map(_quote_name, columns))
    manifests = _quote_text(f"{escape(uri)}/{MANIFEST_PATTERN}")
    first_line = r"regexp_extract(error, '^[^\r\n]*')"
    lines = [
        f"SELECT {selected}",
        f"FROM read_parquet({manifests})",
        f"WHERE status = {_quote_text(cause.status)}",
        f"  AND left({first_line}, {MAX_LINE_CHARS}) = {_quote_text(cause.error)};",
    ]
    if uri.startswith("s3://"):
        lines.insert(0, S3_NOTE)
    return "\n".join(lines)


def _quote_name(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _quote_text(text: str) -> str:
    """The text as SQL of printable characters, whatever it holds."""
    escaped = text.replace("'", "''")
    return f"'{UNSAFE_IN_LINE.sub(_quote_unsafe, escaped)}'"


def _quote_unsafe(match: Match[str]) -> str:
    return f"' || chr({ord(match[0])}) || '"
