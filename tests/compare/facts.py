"""A snapshot as single values, each with a label that says where it stands, sorted by aspect."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import yaml

from tests.compare.vocabulary import Vocabulary

Values: TypeAlias = Mapping[str, object]
Facts: TypeAlias = Mapping[str, Values]
BYTES = "file_bytes"  # ends the label of a whole file's hash, beside the values in it
IMAGE = re.compile(r"\.image\.bytes$|\.(png|jpg|webp)\.content$")
ID = re.compile(r"\.image_id$")
# In the order of the table: an aspect, and the files that it is about, below a run or a round.
FILES = {
    "plan": re.compile(r"plan\.json"),
    "shards": re.compile(r"shards/"),
    "parts": re.compile(r"(images|index)/"),
    "manifest": re.compile(r"manifest/"),
    "rejected": re.compile(r"(rejected|duplicates)\.parquet"),
    "report": re.compile(r"(report/|README\.md)"),
}
RECORDS = "records"  # summary, statistics, indexes, input pictures, the log of runs
ASPECTS = (
    "exits", "messages", "files", "plan", "shards", "ids", "images", "parts", "manifest",
    "rejected", RECORDS, "report", "yaml",
)  # fmt: skip


def load(path: Path, vocabulary: Vocabulary) -> tuple[list[str], Facts]:
    """The derived run ids and the facts of a scenario's snapshot, by aspect and label."""
    content = json.loads(path.read_text(encoding="utf-8"))
    facts: dict[str, dict[str, object]] = defaultdict(dict)
    for aspect, label, value in (*_of_commands(content), *_of_files(content, vocabulary)):
        if aspect not in vocabulary.ignored and not vocabulary.ignores(label):
            facts[aspect][label] = value
    return content["run_ids"], facts


def _of_commands(content: Values) -> Iterator[tuple[str, str, object]]:
    commands = content["commands"]
    assert isinstance(commands, list)
    for number, command in enumerate(commands):
        label = f"command {number} ({command['command']})"
        yield "exits", label, command["exit_code"]
        yield "messages", f"{label}.stderr", command["stderr"]
        if command["command"].startswith("render "):
            documents = list(yaml.safe_load_all(command["stdout"]))
            for place, value in _flat(documents, label, Vocabulary({}, ())):
                yield "yaml", place, value
            yield "yaml", f"{label}.{BYTES}", command["stdout"]
        else:
            yield "messages", f"{label}.stdout", command["stdout"]


def _of_files(content: Values, vocabulary: Vocabulary) -> Iterator[tuple[str, str, object]]:
    files = content["files"]
    assert isinstance(files, dict)
    for name, record in files.items():
        path = "/".join(vocabulary.renames.get(part, part) for part in name.split("/"))
        yield "files", path, "present"
        for label, value in _flat(record, path, vocabulary):
            yield _aspect(path, label), label, value


def _aspect(path: str, label: str) -> str:
    below = re.sub(r"^[^/]*/(retry-\d+/)?", "", path)
    aspect = next((name for name, files in FILES.items() if files.match(below)), RECORDS)
    if aspect == "shards" and ID.search(label):
        return "ids"
    if aspect == "parts" and IMAGE.search(label):
        return "images"
    return aspect


def _flat(value: object, label: str, vocabulary: Vocabulary) -> Iterator[tuple[str, object]]:
    """Every scalar in a value, with its label: dotted keys, and places of lists in brackets."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            inner = f"{label}.{key}"
            name = vocabulary.new_name(re.sub(r"\[\d+\]", "", inner))
            yield from _flat(item, f"{label}.{name}", vocabulary)
    elif isinstance(value, list) and value:
        for place, item in enumerate(value):
            yield from _flat(item, f"{label}[{place}]", vocabulary)
    else:
        yield label, value
