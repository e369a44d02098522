"""What a scenario left, as JSON: its commands' results, and the content of every file."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import pyarrow.parquet as pq

Json: TypeAlias = object
TEXTS = {".html", ".md", ".txt"}
# Plots of times, and code compiled for this machine.
VOLATILE = re.compile(r"/report/[^/]+\.png$|^_compiled/")
# Of the report: the section on time, and figures of time beside those of an earlier run.
TIMES = re.compile(
    r'<section aria-labelledby="time">.*?</section>|'
    r'<tr><th scope="row">(?:images a second|device hours|cost)[^\n]*',
    re.DOTALL,
)
DERIVED_RUN = re.compile(r"^([a-z0-9-]+)-[0-9a-f]{12}$")


def write(
    path: Path,
    commands: list[Json],
    files: Mapping[str, bytes],
    places: Mapping[str, str],
) -> None:
    """Write the snapshot of a scenario. `places` has names for the places that change each time.

    Derived run ids are listed beside the rest, and masked in it: they follow from the settings'
    names too.
    """
    stable = {name: content for name, content in files.items() if not VOLATILE.search(name)}
    records = {name: _record(name, content) for name, content in sorted(stable.items())}
    text = json.dumps({"commands": commands, "files": records}, indent=1, default=str)

    for place, name in places.items():
        text = text.replace(place, name)

    runs = _derived_run_ids(files)
    for run in runs:
        text = text.replace(run, DERIVED_RUN.sub(r"\1-DERIVED", run))

    snapshot = {"run_ids": runs, **json.loads(text)}
    path.write_text(json.dumps(snapshot, indent=1) + "\n", encoding="utf-8")


def _derived_run_ids(names: Iterable[str]) -> list[str]:
    folders = {name.split("/")[0] for name in names}
    return sorted(folder for folder in folders if DERIVED_RUN.match(folder))


def _record(name: str, content: bytes) -> dict[str, Json]:
    """What is compared of a file: its content where it can be read, and the hash of its bytes."""
    suffix = PurePosixPath(name).suffix
    if suffix == ".json":
        return {"json": json.loads(content)}
    if suffix == ".parquet":
        return {"table": _table(content), "file_bytes": _digest(content)}
    if suffix == ".tar":
        return {"members": _members(content), "file_bytes": _digest(content)}
    if suffix in TEXTS or name.endswith("/_SUCCESS"):
        return {"lines": TIMES.sub("", content.decode()).splitlines()}
    return {"content": _digest(content)}


def _table(content: bytes) -> dict[str, Json]:
    table = pq.read_table(io.BytesIO(content))
    metadata = table.schema.metadata or {}
    return {
        "schema": {field.name: str(field.type) for field in table.schema},
        "metadata": {key.decode(): value.decode() for key, value in metadata.items()},
        "rows": [_plain(row) for row in table.to_pylist()],
    }


def _plain(value: Json) -> Json:
    if isinstance(value, bytes):
        return _digest(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _members(content: bytes) -> dict[str, Json]:
    members: dict[str, Json] = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None:
                members[member.name] = _record(f"/{member.name}", file.read())
    return members


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
