"""Weight files, known without being loaded."""

import hashlib
from pathlib import Path

from imagekiln.steps.models.weights import PIECE_BYTES, file_sha256, hash_files


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"weights")
    assert file_sha256(file) == hashlib.sha256(b"weights").hexdigest()


def test_a_file_of_several_pieces_has_the_hash_of_the_whole(tmp_path: Path) -> None:
    content = bytes(range(256)) * (PIECE_BYTES // 256) + b"and a bit more"
    file = tmp_path / "weights"
    file.write_bytes(content)
    assert file_sha256(file) == hashlib.sha256(content).hexdigest()


def test_hashes_of_files_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(9)]
    for number, file in enumerate(files):
        file.write_bytes(bytes(100 * ((7 * number) % 9)))
    wanted = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert hash_files(files) == wanted
    assert hash_files([]) == []
