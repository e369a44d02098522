import hashlib
from pathlib import Path

import pytest

from imagekiln.steps.models.weights import file_sha256


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    assert file_sha256(file) == hashlib.sha256(b"weights").hexdigest()


def test_a_file_that_stays_is_read_once_and_one_that_changes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read, opened = tmp_path / "weights", [], Path.open

    def counted(self: Path, mode: str = "r") -> object:
        read.append(self)
        return opened(self, mode)

    monkeypatch.setattr(Path, "open", counted)
    for content in (b"one", b"two", b"longer"):
        written = tmp_path / "written"
        written.write_bytes(content)
        written.replace(file)
        read.clear()
        assert {file_sha256(file) for _ in range(3)} == {hashlib.sha256(content).hexdigest()}
        assert read == [file]


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        file_sha256(tmp_path / "weights")
