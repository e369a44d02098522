"""Weight files, known without being loaded."""

import hashlib
from pathlib import Path

import pytest

from imagekiln.steps.models.weights import file_sha256


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    assert file_sha256(file) == hashlib.sha256(b"weights").hexdigest()


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_sha256(tmp_path / "weights")
