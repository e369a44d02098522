"""Tars of WebDataset: what is in them."""

import io
import json
import tarfile

import pyarrow as pa

from imagekiln.steps.aggregate.features import sample_features
from imagekiln.steps.export.tar_file import TarFile


def test_tar_holds_three_files_an_image_of_no_time_and_no_owner() -> None:
    rows = pa.table({"image_id": ["a", "b"], "prompt": ["a cat", "ein Käfer"]})
    file = TarFile()
    file.add(rows, [b"first", b"second"], [".png", ".jpg"])
    content = file.finish()
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


def test_tar_s_samples_have_types_even_where_the_first_ones_are_null() -> None:
    rows = pa.schema(
        [("tag", pa.list_(pa.timestamp("us"))), ("map", pa.map_(pa.string(), pa.int64()))]
    )
    [image, json_column, *texts] = sample_features(rows, ".png")
    assert image == {"name": "png", "dtype": "image"}
    assert isinstance(json_column["struct"], list)
    assert json_column["struct"][:2] == [
        {"name": "tag", "list": "string"},
        {
            "name": "map",
            "list": [{"name": "key", "dtype": "string"}, {"name": "value", "dtype": "int64"}],
        },
    ]
    assert [each["name"] for each in texts] == ["txt", "__key__", "__url__"]
