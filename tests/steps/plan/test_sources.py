import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.plan.input_files import (
    CHUNK_BYTES,
    SourceFile,
    gather_sources,
    input_fingerprint,
)
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests.mounts import small_disk
from tests.s3 import Login, S3Server, log_in
from tests.stub_s3 import EXPIRED, StubS3, stub_s3
from tests.texts import chance

CONTENTS = {
    "b.parquet": b"second",
    "a.parquet": b"first",
    "deep/er/c.parquet": b"third",
    "d.csv": b"another kind",
}


@pytest.fixture
def folder(store_uri: str) -> str:
    """A folder with CONTENTS, on disk and in S3."""
    store = open_store(store_uri)
    for name, content in CONTENTS.items():
        store.create(name, content)
    return store_uri


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubS3]:
    with stub_s3() as store:
        log_in(S3Server(store.endpoint), monkeypatch)
        yield store


def read(found: tuple[SourceFile, ...]) -> list[bytes]:
    """What planning will read."""
    return [source.path.read_bytes() for source in found]


def test_named_file_is_found_with_the_hash_of_its_content(folder: str, spool: Path) -> None:
    (found,) = gather_sources((f"{folder}/a.parquet",), spool)
    assert found.uri == f"{folder}/a.parquet"
    assert found.sha256 == hashlib.sha256(b"first").hexdigest()
    assert read((found,)) == [b"first"]


def test_pattern_finds_files_in_the_order_of_their_names(folder: str, spool: Path) -> None:
    found = gather_sources((f"{folder}/*.parquet",), spool)
    assert [source.uri for source in found] == [f"{folder}/a.parquet", f"{folder}/b.parquet"]
    assert read(found) == [b"first", b"second"]


def test_pattern_reaches_into_folders(folder: str, spool: Path) -> None:
    assert read(gather_sources((f"{folder}/**/*.parquet",), spool)) == [
        b"first",
        b"second",
        b"third",
    ]


def test_patterns_keep_the_order_they_were_given_in(folder: str, spool: Path) -> None:
    patterns = (f"{folder}/b.parquet", f"{folder}/a.*", f"{folder}/b.parquet")
    assert read(gather_sources(patterns, spool)) == [b"second", b"first", b"second"]


def test_fingerprint_follows_contents_and_order_but_not_names(
    folder: str, spool: Path, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"first")
    (tmp_path / "y").write_bytes(b"second")
    here = input_fingerprint(gather_sources((str(tmp_path / "x"), str(tmp_path / "y")), spool))
    assert input_fingerprint(gather_sources((f"{folder}/?.parquet",), spool)) == here
    assert (
        input_fingerprint(gather_sources((str(tmp_path / "y"), str(tmp_path / "x")), spool)) != here
    )
    (tmp_path / "y").write_bytes(b"secant")
    assert (
        input_fingerprint(gather_sources((str(tmp_path / "x"), str(tmp_path / "y")), spool)) != here
    )


@pytest.mark.parametrize("name", ["none.parquet", "*.txt", "none/*.parquet"])
def test_pattern_that_names_nothing_is_missing(folder: str, spool: Path, name: str) -> None:
    with pytest.raises(Missing, match="no such file"):
        gather_sources((f"{folder}/a.parquet", f"{folder}/{name}"), spool)


def test_folder_instead_of_files_is_bad_input_with_the_pattern_to_write(
    tmp_path: Path, spool: Path
) -> None:
    with pytest.raises(BadInput, match=r"is a folder\. Write .*/\*\.parquet"):
        gather_sources((f"{tmp_path}/",), spool)


def test_file_uri_and_bundled_name_are_files_of_this_machine(tmp_path: Path, spool: Path) -> None:
    (tmp_path / "x").write_bytes(b"first")
    found = gather_sources((f"file://{tmp_path}/x", "bundled:prompts.parquet"), spool)
    assert read(found) == [b"first", (BUNDLED_FOLDER / "prompts.parquet").read_bytes()]
    assert list(spool.iterdir()) == []


def test_bucket_that_is_not_there_is_bad_input(s3_bucket: str, spool: Path) -> None:
    for name in ("a.parquet", "*.parquet"):
        with pytest.raises(BadInput, match="no such"):
            gather_sources((f"{s3_bucket}-not/{name}",), spool)


@pytest.mark.parametrize("name", ["a.parquet", "*.parquet"])
def test_wrong_credentials_are_bad_input(
    s3_bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, spool: Path, name: str
) -> None:
    open_store(s3_bucket).create("a.parquet", b"first")
    log_in(s3_server, monkeypatch, Login("writer", "wrong"))
    with pytest.raises(BadInput, match="access was refused"):
        gather_sources((f"{s3_bucket}/{name}",), spool)


def test_long_file_arrives_whole(s3_bucket: str, spool: Path) -> None:
    content = chance(7).randbytes(2 * CHUNK_BYTES + 4321)
    open_store(s3_bucket).create("long.parquet", content)
    (found,) = gather_sources((f"{s3_bucket}/long.parquet",), spool)
    assert read((found,)) == [content]
    assert found.sha256 == hashlib.sha256(content).hexdigest()


def test_answer_cut_off_in_its_middle_is_read_again(stub: StubS3, spool: Path) -> None:
    stub.objects["/bucket/a.parquet"] = b"first" * 1000
    stub.faults.extend(["none", "cut"])  # the file's size, then its bytes
    assert read(gather_sources(("s3://bucket/a.parquet",), spool)) == [b"first" * 1000]
    assert stub.requests == [
        "HEAD /bucket/a.parquet",
        "GET /bucket/a.parquet",
        "GET /bucket/a.parquet",
    ]


def test_expired_token_means_try_again(stub: StubS3, spool: Path) -> None:
    stub.objects["/bucket/a.parquet"] = b"first"
    stub.faults.extend(["none", EXPIRED])
    with pytest.raises(TryAgain, match="have expired"):
        gather_sources(("s3://bucket/a.parquet",), spool)


def test_working_folder_without_room_means_try_again(s3_bucket: str, tmp_path: Path) -> None:
    open_store(s3_bucket).create("a.parquet", bytes(2**20))
    with (
        small_disk(tmp_path / "disk", kibibytes=512) as disk,
        pytest.raises(TryAgain, match="the disk is full"),
    ):
        gather_sources((f"{s3_bucket}/a.parquet",), disk)
