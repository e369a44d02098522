"""What the two states may call differently, and what is not compared.

Both tables grow with the code: a key that is renamed gets an entry in RENAMES, one that is dropped
an entry in IGNORED, in the commit that renames or drops it.
"""

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

# Old and new names of settings, JSON keys, columns and files. "model.loras" renames only there.
RENAMES: Mapping[str, str] = {
    "quantisation": "quantization",
    # plan.json
    "looked_at": "existing_runs",
    "covers": "source_shards",
    "batches": "batch_sizes",
    # stats/*.json
    "json.batch": "max_batch_size",
    "json.batch_pixels": "max_batch_pixels",
    "json.compiled": "compile_mode",
    "json.decoded": "decode_mode",
    # Columns of tables, and keys of sidecars
    **{
        f"{place}.{old}": new
        for place in ("schema", "rows", "json")
        for old, new in {
            "row": "input_row",
            "offset": "byte_offset",
            "size": "byte_size",
            "column": "column_name",
        }.items()
    },
}
# Times, and what follows from them or from the machine.
IGNORED: tuple[str, ...] = (
    "seconds", "device_hours", "images_per_second", "throughput", "usage", "busy", "busy_share",
    "peak_memory", "versions", "started_at", "ended_at", "elapsed_seconds",
    # Of all runs of a job, or added.
    "created_at", "model_revision", "schema.run_id", "rows.run_id", "schema.model", "rows.model",
    # Removed.
    "flops", "limit", "refiner", "reuse", "guidance_until",
)  # fmt: skip
INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """New names by old ones, and the keys, columns and aspects that are not compared."""

    renames: Mapping[str, str]
    ignored: tuple[str, ...]

    @classmethod
    def standard(cls, renames: Iterable[str] = (), ignored: Iterable[str] = ()) -> Self:
        """The tables above, and more renames, as OLD=NEW, and ignored names."""
        more = dict(rename.split("=", 1) for rename in renames)
        return cls({**RENAMES, **more}, (*IGNORED, *ignored))

    def new_name(self, path: str) -> str:
        """The last name of a dotted path, as the newer state calls it."""
        last = path.rpartition(".")[2]
        return next((new for old, new in self.renames.items() if _names(old, path)), last)

    def ignores(self, label: str) -> bool:
        """Whether a value with this label is not compared, by its own name or an outer one."""
        parts = INDEX.sub("", label).split(".")
        paths = [".".join(parts[: end + 1]) for end in range(len(parts))]
        return any(_names(pattern, path) for pattern in self.ignored for path in paths)


@dataclass(frozen=True, slots=True)
class SettingNames:
    """The settings that a checkout knows, so that one scenario can be written for both states."""

    known: frozenset[str]
    renames: Mapping[str, str]

    @classmethod
    def of_checkout(cls, checkout: Path, vocabulary: Vocabulary) -> Self:
        """Ask the command line of a checkout for the schema of its jobs."""
        command = [str(checkout / ".venv/bin/imagekiln"), "schema"]
        schema = subprocess.run(command, capture_output=True, check=True).stdout
        return cls(frozenset(_properties(json.loads(schema))), vocabulary.renames)

    def current(self, name: str) -> str:
        """What the checkout calls this setting or column of the input."""
        new = self.renames.get(name, name)
        return new if name not in self.known and new in self.known else name

    def rename(self, settings: object) -> object:
        """Settings under the names that the checkout knows."""
        if isinstance(settings, Mapping):
            return {self.current(name): self.rename(value) for name, value in settings.items()}
        if isinstance(settings, list | tuple):
            return [self.rename(value) for value in settings]
        return settings


def _names(pattern: str, path: str) -> bool:
    return path == pattern or path.endswith(f".{pattern}")


def _properties(schema: object) -> set[str]:
    """The names of all settings in a JSON Schema, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(_properties, schema))
    if not isinstance(schema, Mapping):
        return set()
    properties = schema.get("properties")
    own = set(properties) if isinstance(properties, Mapping) else set()
    return own.union(*map(_properties, schema.values()))
