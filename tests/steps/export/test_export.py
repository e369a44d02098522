"""An export holds each image that is ok once, in files of the chosen size and layout."""

import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import imagekiln
from imagekiln import BadInput, Incomplete, Missing
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.export import rows
from imagekiln.steps.export.rows import cut_rows
from imagekiln.steps.runs.keys import CARD_KEY, SUCCESS_KEY, commit_key
from imagekiln.steps.storage import open_store
from tests.exports import contents_by_id, read_images, read_manifest, retried_run
from tests.runs import fill, not_ok, planned

FORMATS = ("parquet", "webdataset", "files")
NIGHTS = ("monday", "tuesday", "friday")
IMAGES = 10
FAILED = 3  # in the run itself; a retry makes it again
FILTERED = 5
COLORS = ("red", "a/../b", "", None)


def make_run(scratch: Path, output: str, night: str) -> str:
    """A run of noise whose failed image a retry made again; another one has no image."""
    rows = [
        {"prompt": f"number {index} of {night}", "color": COLORS[index % 4]}
        for index in range(IMAGES)
    ]
    outcomes = {FAILED: not_ok(0), FILTERED: not_ok(0, "filtered")}
    return retried_run(scratch, output, rows, night, "color", outcomes)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output with retried runs. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("export")
    output = str(folder / "nights")
    for night in NIGHTS:
        make_run(folder / night, output, night)
    return output


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files have few images of noise."""
    cut = partial(cut_rows, file_bytes=6000, kind="parquet")
    monkeypatch.setattr(
        "imagekiln.steps.export.step.cut_rows", lambda tables, *_, **__: cut(tables)
    )


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.usefixtures("small_files")
def test_an_export_has_each_image_that_is_ok_once(
    output: str, store_uri: str, file_format: str
) -> None:
    result = imagekiln.export(output, store_uri, format=file_format, partition_by="color")
    images = read_images(store_uri)
    expected = contents_by_id(output)
    assert result.images == len(images) == len(expected) == 3 * (IMAGES - 1)
    assert dict(images.values()) == expected

    manifest = read_manifest(store_uri)
    named = {(row["file"], row["row"]): row["image_id"] for row in manifest}
    assert named == {place: image_id for place, (image_id, _) in images.items()}
    for row in manifest:
        color = row["color"]
        folder = "__HIVE_DEFAULT_PARTITION__" if color is None else str(color)
        assert unquote(str(row["file"]).split("/")[1]) == f"color={folder}"
    folders = Counter(str(PurePosixPath(file).parent) for file, _ in images)
    counted = folders if file_format == "files" else Counter(file for file, _ in images)
    assert max(counted.values()) in range(2, 6)
    assert open_store(store_uri).exists(SUCCESS_KEY)

    again = imagekiln.export(output, store_uri, format=file_format, partition_by="color")
    assert (again.unchanged, again.files) == (result.images, result.files)


def test_readers_of_hive_layouts_read_an_export(output: str, tmp_path: Path) -> None:
    imagekiln.export(output, tmp_path, partition_by="color", columns=["seed", "color"])
    table = ds.dataset(tmp_path / "data", partitioning="hive").to_table()
    assert set(table.column_names) >= {"image", "image_id", "prompt", "seed", "color"}
    assert "steps" not in table.column_names
    assert set(table["color"].to_pylist()) == set(COLORS)


def damage(path: Path) -> None:
    """Change bytes of a file: in a part, those of an image."""
    content = bytearray(path.read_bytes())
    content[1000:1064] = bytes(64)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "problem"), [(damage, "has other bytes"), (Path.unlink, "is missing")]
)
def test_an_image_that_cannot_be_copied_is_named_with_its_part(
    output: str, tmp_path: Path, spoil: Callable[[Path], None], problem: str
) -> None:
    run = shutil.copytree(f"{output}/monday", tmp_path / "monday")
    part = "images/00000-0001.parquet"
    spoil(run / part)
    ids = imagekiln.dataset(run, columns=["image_id"]).to_batches()
    names = [name for batch in ids for name in batch["image_id"].to_pylist()]
    with pytest.raises(BadInput, match=problem) as caught:
        imagekiln.export(run, tmp_path / "out")
    message = str(caught.value)
    assert part in message
    assert any(name in message for name in names)
    assert "verify" in message
    assert not open_store(str(tmp_path / "out")).exists(SUCCESS_KEY)

    shutil.copy(f"{output}/monday/{part}", run / part)
    assert imagekiln.export(run, tmp_path / "out").images == IMAGES - 1


def test_a_destination_with_something_else_is_refused(output: str, tmp_path: Path) -> None:
    unfinished = planned(tmp_path / "p", str(tmp_path / "open"), [{"prompt": "a"}])
    for holder in (output, f"{output}/friday", unfinished.uri):
        with pytest.raises(BadInput, match=r"of (no|an) export\. .*[Cc]hoose another"):
            imagekiln.export(output, holder)
    target = tmp_path / "export"
    imagekiln.export(f"{output}/friday", target)
    (rows,) = (target / "_rows").iterdir()
    damage(rows)
    commit = (target / commit_key(0)).read_text()
    shutil.rmtree(target / "commits")
    (target / "commits").mkdir()
    other = commit.replace('"export_version":1', '"export_version":99')
    (target / commit_key(0)).write_text(other)
    with pytest.raises(BadInput, match="has version 99, and this Imagekiln reads 1"):
        imagekiln.export(f"{output}/friday", target)
    (target / commit_key(0)).write_text("{}")
    with pytest.raises(BadInput, match="is not a commit of an export"):
        imagekiln.export(f"{output}/friday", target)


@pytest.mark.parametrize("name", [CARD_KEY, "manifest/mine.parquet", "data/mine.txt"])
def test_a_file_of_somebody_is_found_before_anything_is_copied(
    output: str, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    first = name.partition("/")[0]
    with pytest.raises(BadInput, match=f"{first}: is there already, and of no export"):
        imagekiln.export(output, tmp_path)
    assert file.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_what_cannot_be_exported_is_refused_in_a_sentence(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"{output}/friday"
    with pytest.raises(BadInput, match=r"file_size: .* greater than or equal to 1000000"):
        imagekiln.export(run, tmp_path, file_size="1 kB")
    with pytest.raises(BadInput, match="file size: does not apply to `files`"):
        imagekiln.export(run, tmp_path, format="files", file_size="1GB")
    with pytest.raises(BadInput, match="format: Input should be 'parquet'"):
        imagekiln.export(run, tmp_path, format="tar")
    with pytest.raises(BadInput, match="has no column 'colour'"):
        imagekiln.export(run, tmp_path, partition_by="colour")
    with pytest.raises(BadInput, match="'guidance': is neither text"):
        imagekiln.export(run, tmp_path, partition_by="guidance")
    with pytest.raises(Missing):
        imagekiln.export(tmp_path / "nothing", tmp_path)
    monkeypatch.setattr(rows, "MAX_PARTITIONS", 3)
    with pytest.raises(BadInput, match="more than 3 values"):
        imagekiln.export(run, tmp_path / "parts", partition_by="color")
    unmade = planned(tmp_path / "p", str(tmp_path / "open"), [{"prompt": "a"}])
    with pytest.raises(Incomplete):
        imagekiln.export(unmade.uri, tmp_path / "out")
    without = planned(tmp_path / "q", str(tmp_path / "none"), [{"prompt": "a"}])
    fill(without, {0: not_ok(0, "filtered")})
    aggregate(without.uri, failed_share=1.0)
    with pytest.raises(BadInput, match="has no image that is ok, so there is nothing to export"):
        imagekiln.export(without.uri, tmp_path / "out")
    assert not list(tmp_path.glob("*/" + commit_key(0)))


@pytest.mark.usefixtures("small_files")
def test_pieces_of_a_manifest_have_each_image_once(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagekiln.steps.export.formats.MANIFEST_ROWS", 7)
    imagekiln.export(output, tmp_path)
    pieces = [pq.read_metadata(path).num_rows for path in (tmp_path / "manifest").iterdir()]
    assert 1 < len(pieces) <= sum(pieces) / 5
    ids = [row["image_id"] for row in read_manifest(str(tmp_path))]
    assert sorted(map(str, ids)) == sorted(contents_by_id(output))
