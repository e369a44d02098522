"""What a training job loads of a dataset on the hub of HF_ENDPOINT, as JSON lines.

`python -m tests.hub_reader USER/NAME VERSION...`, since the library reads its endpoint at import.
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

# By name: type checkers take this repository's folder `datasets` for the library.
datasets: Any = import_module("datasets")
SUFFIXES = ("image", "png")  # the columns of images: of Parquet, and of WebDataset


def load(name: str, version: str, *, streaming: bool) -> list[dict[str, object]]:
    """The rows of a version, with the hash of each image's file in place of the image."""
    images = datasets.load_dataset(name, revision=version, split="train", streaming=streaming)
    (column,) = [suffix for suffix in SUFFIXES if suffix in images.features]
    decoded = next(iter(images))[column]
    rows = images.cast_column(column, datasets.Image(decode=False))
    return [
        {
            "image_id": row.get("image_id", row.get("__key__")),
            "prompt": row.get("prompt", row.get("txt")),
            "seed": row.get("json", row)["seed"],
            "sha256": hashlib.sha256(row[column]["bytes"]).hexdigest(),
            "size": list(decoded.size),
        }
        for row in rows
    ]


def load_manifest(name: str, version: str) -> list[dict[str, object]]:
    """The rows of a version's manifest."""
    files = f"hf://datasets/{name}@{version}/manifest/*.parquet"
    manifest = datasets.load_dataset("parquet", data_files=files, split="train")
    return list(manifest)


def main(name: str, versions: Iterable[str]) -> None:
    """Write a line for each way to load each version."""
    for version in versions:
        for streaming in (False, True):
            write_line(load(name, version, streaming=streaming))
        write_line(load_manifest(name, version))


def write_line(rows: list[dict[str, object]]) -> None:
    """Write rows for the test that started this process."""
    sys.stdout.write(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
