"""Names of files, and the bundled data."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import MAX_TEXT_BYTES, locate_object, read_text


@pytest.mark.parametrize(
    ("name", "uri", "key"),
    [
        ("s3://bucket/jobs/night.yaml", "s3://bucket/jobs", "night.yaml"),
        ("/jobs/night.yaml", "/jobs", "night.yaml"),
        ("file:///jobs/night.yaml", "/jobs", "night.yaml"),
        ("night.yaml", ".", "night.yaml"),
    ],
)
def test_an_object_is_located_by_its_folder_and_key(name: str, uri: str, key: str) -> None:
    store, located_key = locate_object(name)
    assert (store.uri, located_key) == (uri, key)


def test_text_is_read_from_a_store(store_uri: str) -> None:
    open_store(store_uri).create("job.yaml", b"\xef\xbb\xbfname: \xc3\xa4\n")
    assert read_text(f"{store_uri}/job.yaml") == "name: ä\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff", "is not UTF-8 text"), (b"x" * (MAX_TEXT_BYTES + 1), "more than the 1048576")],
)
def test_object_that_is_not_a_job_file_is_bad_input(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_bytes(content)
    with pytest.raises(BadInput, match=rf"job\.yaml: .*{problem}.* Choose a job file\."):
        read_text(f"{tmp_path}/job.yaml")
