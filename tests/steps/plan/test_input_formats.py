"""Prompts in Arrow are read like those in Parquet, and what is of no use is named."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

from imagekiln.steps.errors import BadInput, TryAgain
from tests.jobs import SHAPES, image_rows, plan, rejected, write
from tests.mounts import small_disk
from tests.texts import chance

ROWS = pa.table(
    {
        "prompt": ["a", "b", None, "é 🔥"],
        "id": pa.array([bytes(15) + bytes([n]) for n in range(4)], pa.uuid()),
        "seed": pa.array([1, 2, 3, None], pa.int16()),
        "label": pa.array(["x", "y", "x", None]).dictionary_encode(),
        "extra": pa.array([[1], None, [2, 3], []]),
        "view": pa.array(["1", "2", None, "4"], pa.string_view()),
    }
)
LIMITS = {"rejected_share": 0.5}
Writer = Callable[[Path, pa.Table], None]


def _write_stream(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def _write_file(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def _write_feather(path: Path, table: pa.Table) -> None:
    feather.write_feather(table.drop_columns(["view"]), str(path), compression="zstd")


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", ["p.arrow", "p.feather", "p.ipc", "prompts"])
@pytest.mark.parametrize("writer", [_write_stream, _write_file, _write_feather])
def test_arrow_plans_the_images_of_the_same_parquet(
    tmp_path: Path, writer: Writer, name: str
) -> None:
    settings = {"limits": LIMITS, "carry": ["label", "extra"]}
    expected = plan(tmp_path / "parquet", ROWS, **settings)
    writer(tmp_path / name, ROWS)
    planned = plan(tmp_path, prompts=f"{tmp_path}/{name}", **settings)
    assert image_rows(planned) == image_rows(expected)
    assert image_rows(planned)["id"][1].as_py() == "00000000-0000-0000-0000-000000000001"
    assert [row["input_row"] for row in rejected(planned)] == [2]


def _refused(folder: Path, name: str) -> str:
    with pytest.raises(BadInput) as caught:
        plan(folder, prompts=f"{folder}/{name}")
    assert not (folder / "out").exists()
    return str(caught.value).replace(f"{folder}/", "")


TABLE_IN_TEXT = (
    "begins as a table or JSON, not with a prompt. End its name in .csv, .tsv (separated by tabs) "
    "or .json."
)
REFUSED = {
    "p.csv.gz": (gzip.compress(b"prompt\na\n"), "is compressed with gzip. Unpack it."),
    "p.xlsx": (
        b"PK\x03\x04xl",
        "is a zip archive or a workbook of a spreadsheet. Unpack it, or save it as CSV.",
    ),
    "p.feather": (
        b"FEA1....",
        "is a Feather file of version 1. Write it again as version 2, or as Parquet.",
    ),
    "p.txt": (b"prompt\na\n", TABLE_IN_TEXT),
    "json.txt": (b'{"prompt": "a"}\n', TABLE_IN_TEXT),
    "old.xls": (b"\xd0\xcf\x11\xe0....", "is a workbook of Excel. Save it as CSV."),
    "sheet.csv": (
        b"<!DOCTYPE html><html>",
        "is a web page. Name the file itself; of a Google Sheet, download it as CSV.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_file_of_no_use_is_named_as_what_it_is(tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    assert _refused(tmp_path, name) == f"{name}: {message}"


def test_formats_may_be_mixed(tmp_path: Path) -> None:
    write(tmp_path / "in/1.parquet", {"prompt": ["a"], "seed": [1]})
    (tmp_path / "in/2.csv").write_text("seed,prompt\n2,b\n")
    (tmp_path / "in/3.json").write_text('{"prompt": "c", "seed": 3}\n')
    _write_stream(tmp_path / "in/4.arrow", pa.table({"prompt": ["d"], "seed": [4]}))
    patterns = [f"{tmp_path}/in/{number}.*" for number in (3, 4, 1, 2)]
    planned = plan(tmp_path, prompts=patterns)
    assert image_rows(planned).select(["prompt", "seed", "input_row"]).to_pylist() == [
        {"prompt": "c", "seed": 3, "input_row": 0},
        {"prompt": "d", "seed": 4, "input_row": 1},
        {"prompt": "a", "seed": 1, "input_row": 2},
        {"prompt": "b", "seed": 2, "input_row": 3},
    ]


def test_disk_without_room_for_the_converted_file_means_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = chance(5).randbytes(2**20).hex()
    lines = "\n".join(text[place : place + 1000] for place in range(0, len(text), 1000))
    (tmp_path / "p.csv").write_text(f"prompt\n{lines}\n")
    with small_disk(tmp_path / "disk", kibibytes=512) as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        monkeypatch.setattr("tempfile.tempdir", None)
        with pytest.raises(TryAgain, match="the disk is full"):
            plan(tmp_path, prompts=f"{tmp_path}/p.csv", model=SHAPES)
