"""The files of an export: their names, sizes and contents."""

import io
import json
import tarfile
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.export.commits import SUBFOLDER_FILES, data_key, partition_folder
from imagekiln.steps.export.formats import (
    ImageBatch,
    picture_paths,
    write_tables,
    write_tar,
)
from imagekiln.steps.export.rows import cut_rows
from imagekiln.steps.job.output import ExportFormat
from tests.texts import chance


def test_tar_holds_three_files_an_image_of_no_time_and_no_owner() -> None:
    rows = pa.table({"image_id": ["a", "b"], "prompt": ["a cat", "ein Käfer"]})
    content = write_tar([ImageBatch(rows, [b"first", b"second"], [".png", ".jpg"])])
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = tar.getmembers()
        contents = [(tar.extractfile(member) or io.BytesIO()).read() for member in members]
    names = ["a.png", "a.json", "a.txt", "b.jpg", "b.json", "b.txt"]
    assert [member.name for member in members] == names
    assert (contents[0], contents[3], contents[5]) == (b"first", b"second", "ein Käfer".encode())
    assert json.loads(contents[1]) == {"image_id": "a", "prompt": "a cat"}
    for member in members:
        assert (member.mtime, member.uid, member.gid) == (0, 0, 0)
        assert (member.uname, member.gname, member.mode) == ("", "", 0o644)


def test_arrow_stream_holds_the_same_rows_as_parquet() -> None:
    rows = pa.table({"image_id": ["a", "b"], "prompt": ["a cat", "ein Käfer"]})
    batch = ImageBatch(rows, [b"first", b"second"], [".png", ".jpg"])
    parquet = write_tables([batch], rows.schema, "parquet")
    with pa.ipc.open_stream(write_tables([batch], rows.schema, "arrow")) as stream:
        table = stream.read_all()
    assert table.equals(pq.read_table(pa.BufferReader(parquet)))
    assert table["image"].to_pylist()[1] == {"bytes": b"second", "path": "b.jpg"}


@pytest.mark.parametrize(("kind", "row_bytes"), [("parquet", 8), ("webdataset", 3109)])
def test_files_have_at_most_the_size_that_was_chosen(kind: ExportFormat, row_bytes: int) -> None:
    choose = chance(3)
    tables = [
        pa.table({"byte_size": [choose.randint(1, 400) for _ in range(choose.randint(1, 30))]})
        for _ in range(100)
    ]
    most = 100 * row_bytes
    files = list(cut_rows(iter(tables), most, kind))
    assert pa.concat_tables(files).equals(pa.concat_tables(tables))
    sizes = [sum(file["byte_size"].to_pylist()) + row_bytes * file.num_rows for file in files]
    assert max(sizes) <= most
    assert min(sizes[:-1]) > most / 3
    alone = pa.table({"byte_size": [2 * most, 5 * most]})
    assert [file.num_rows for file in cut_rows(iter([alone]), most, kind)] == [1, 1]


def test_folders_have_few_files_under_names_that_follow_from_their_places() -> None:
    rows = pa.table({"byte_size": [2_000_000] * 2500})
    folders = list(cut_rows(iter([rows]), 500_000_000, "files"))
    assert [folder.num_rows for folder in folders] == [1000, 1000, 500]
    key = data_key("", 4, 12, "0a1b", "/metadata.parquet")
    assert list(map(str, picture_paths(key, [".png", ".jpg"]))) == [
        "data/000004-00012-0a1b/000004-00012-0a1b-00000.png",
        "data/000004-00012-0a1b/000004-00012-0a1b-00001.jpg",
    ]
    count = 3 * SUBFOLDER_FILES + 1
    keys = [data_key("a=b", 0, number, "0a1b", ".tar") for number in range(count)]
    assert len(set(keys)) == count
    files = Counter(key.rpartition("/")[0] for key in keys)
    assert max(*files.values(), len(files)) <= SUBFOLDER_FILES
    with pytest.raises(BadInput, match="is too long for a folder's name"):
        partition_folder("color", "red" * 100)
