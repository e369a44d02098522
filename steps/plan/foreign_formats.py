"""Prompts in another format than Parquet: what the file is, and the line that converts it."""

import json
from pathlib import Path

PARQUET_MAGIC = b"PAR1"
ARROW_MAGIC = b"ARROW1"
GZIP_MAGIC = b"\x1f\x8b"
SAMPLE_BYTES = 4096
JSON_LINES_READER = "json.read_json"
CSV_READER = "csv.read_csv"
ARROW_READER = "feather.read_table"


def describe_foreign_format(path: Path, uri: str) -> str | None:
    """The problem and the remedy, where the file is of another known format; else None."""
    with path.open("rb") as file:
        sample = file.read(SAMPLE_BYTES)
    if sample.startswith(PARQUET_MAGIC):
        return None
    if sample.startswith(ARROW_MAGIC):
        return _suggest_conversion("an Arrow file", ARROW_READER, uri)
    if sample.startswith(GZIP_MAGIC):
        return "is compressed with gzip. Unpack it, and write its rows as Parquet."
    return _describe_text_format(sample, uri)


def _describe_text_format(sample: bytes, uri: str) -> str | None:
    # The sample may end inside a character.
    text = sample.decode("utf-8-sig", errors="ignore").lstrip()
    is_cut_only = len(text.encode()) + 8 >= len(sample.strip())
    if not text or "\0" in text or not is_cut_only:
        return None
    first_line = text.splitlines()[0]
    if _is_json_object(first_line):
        return _suggest_conversion("JSON Lines", JSON_LINES_READER, uri)
    if text[0] in "{[":
        return "is JSON, not Parquet. Write its rows as Parquet, for example with pandas."
    if not all(character.isprintable() or character.isspace() for character in text):
        return None
    return _suggest_conversion("CSV or other text", CSV_READER, uri)


def _is_json_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    if not line.rstrip().endswith("}"):  # longer than the sample
        return True
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _suggest_conversion(label: str, reader: str, uri: str) -> str:
    name = uri.rpartition("/")[2] if "://" in uri else uri
    target = f"{name.rpartition('.')[0] or name}.parquet"
    if target == name:
        target = f"{name}.parquet"
    module, _, function = reader.partition(".")
    code = (
        f"from pyarrow import {module}, parquet; "
        f"parquet.write_table({module}.{function}({name!r}), {target!r})"
    )
    return f'is {label}, not Parquet. `python -c "{code}"` converts it.'
