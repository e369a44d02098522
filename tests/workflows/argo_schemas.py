"""Argo's own schemas, which refuse a field that Argo does not know."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[3] / "shared" / "argo"


def mistakes(manifest: dict[str, Any]) -> list[str]:
    """What Argo's schema refuses of an object. Skips the test where the schemas are missing."""
    validator = _schema(str(manifest["kind"]))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


@cache
def _schema(kind: str) -> Draft202012Validator:
    path = SCHEMAS / f"{kind}.schema.json.gz"
    if not path.is_file():
        pytest.skip(
            "Argo's own JSON schemas are not part of the repository: nothing is wrong. The objects "
            "are checked in other tests too."
        )
    return Draft202012Validator(json.loads(gzip.decompress(path.read_bytes())))
