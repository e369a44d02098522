"""An export holds each image that is ok once, whatever interrupts it, and whoever else makes it."""

import io
import json
import shutil
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import imagekiln
from imagekiln import BadInput, Incomplete, Missing, TryAgain
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import StorageRefused
from imagekiln.steps.export import selection
from imagekiln.steps.export.copying import BATCH_BYTES, BATCH_ROWS, cut_pieces
from imagekiln.steps.export.cutting import cut_rows
from imagekiln.steps.export.layout import (
    MAX_FOLDER_FILES,
    data_key,
    manifest_chunk_key,
    partition_folder,
)
from imagekiln.steps.export.plan import load_export_plan
from imagekiln.steps.export.settings import FileFormat
from imagekiln.steps.export.step import export
from imagekiln.steps.runs.forgotten import add_forgotten
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.keys import CARD_KEY, EXPORT_KEY, SUCCESS_KEY
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.interleaving import Process, interleaving
from tests.mounts import small_disk
from tests.runs import begin_round, encoded, fill, not_ok, planned, retried
from tests.texts import chance

FORMATS = ("parquet", "webdataset", "files")
IMAGES = 10
FAILED = 3  # in the run itself; a round makes it again
FILTERED = 5
ROWS = [{"prompt": f"number {index}"} for index in range(IMAGES)]
COLORS = ("red", "a/../b", "", None)
HISTORIES = 12


def make_run(scratch: Path, output: str, format_name: str = "parquet") -> str:
    """A run of noise whose failed image a round made again; another one has no image."""
    rows = [
        {"prompt": f"number {index} of {format_name}", "color": COLORS[index % 4]}
        for index in range(IMAGES)
    ]
    changes = {"run_id": f"night-{format_name}", "format": format_name, "carry": ["color"]}
    result = planned(scratch, output, rows, limits={"failed_share": 0.5}, **changes)
    outcomes = {FAILED: not_ok(0), FILTERED: not_ok(0, "filtered")}
    return retried(result, outcomes, encoded(0))


class CalledBack(NoProgress):
    """Calls back once images are copied."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def add_committed(self, images: int) -> None:  # noqa: ARG002  # however many
        self._then()


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An output with a retried run in each format. Tests that change it copy it."""
    folder = tmp_path_factory.mktemp("export")
    output = str(folder / "nights")
    for format_name in FORMATS:
        make_run(folder / format_name, output, format_name)
    return output


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files have few images of noise."""
    limit_files(monkeypatch, 6000, "parquet")


def limit_files(patch: pytest.MonkeyPatch, size: int, kind: FileFormat) -> None:
    """Let files of any format be cut as those of this one, after fewer bytes than users may ask."""
    cut = partial(cut_rows, file_bytes=size, kind=kind)
    patch.setattr("imagekiln.steps.export.cutting.cut_rows", lambda tables, *_: cut(tables))


def contents_by_id(output: str) -> dict[str, bytes]:
    """The bytes of each image, as the reader of runs gives them."""
    images: dict[str, bytes] = {}
    for batch in imagekiln.dataset(output, columns=["image_id", "image"]).to_batches():
        for row in batch.to_pylist():
            images[row["image_id"]] = row["image"]["bytes"]
    return images


def read_files(destination: str) -> dict[tuple[str, int], tuple[str, bytes]]:
    """The id and the bytes of each image by its file and its place there, read by other tools."""
    store = open_store(destination)
    images: dict[tuple[str, int], tuple[str, bytes]] = {}
    for file in load_export_plan(store).files:
        content = store.read(file.key)
        if file.key.endswith(".parquet"):
            rows = pq.read_table(io.BytesIO(content)).to_pylist()
            samples = [(row["image_id"], row["image"]["bytes"]) for row in rows]
        else:
            samples = list(_tar_samples(content))
        for place, sample in enumerate(samples):
            images[file.key, place] = sample
    return images


def _tar_samples(content: bytes) -> list[tuple[str, bytes]]:
    samples = []
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            if member.name.endswith(".png"):
                samples.append((member.name.removesuffix(".png"), file.read()))
            elif member.name.endswith(".json"):
                assert json.loads(file.read())["image_id"] == samples[-1][0]
    return samples


def read_manifest(destination: str) -> list[dict[str, object]]:
    """Every row of an export's manifest."""
    store = open_store(destination)
    keys = sorted(entry.key for entry in store.list_folder("manifest"))
    return [row for key in keys for row in pq.read_table(io.BytesIO(store.read(key))).to_pylist()]


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("file_format", ["parquet", "webdataset"])
@pytest.mark.usefixtures("small_files")
def test_an_export_has_each_image_that_is_ok_once(
    output: str, store_uri: str, file_format: str
) -> None:
    result = imagekiln.export(output, store_uri, format=file_format, partition_by="color")
    images = read_files(store_uri)
    expected = contents_by_id(output)
    assert result.images == len(images) == len(expected) == 3 * (IMAGES - 1)
    assert dict(images.values()) == expected

    manifest = read_manifest(store_uri)
    named = {(row["file"], row["row"]): row["image_id"] for row in manifest}
    assert named == {place: image_id for place, (image_id, _) in images.items()}
    assert {row["status"] for row in manifest} == {"ok"}
    for row in manifest:
        color = row["color"]
        folder = "__HIVE_DEFAULT_PARTITION__" if color is None else str(color)
        assert unquote(str(row["file"]).split("/")[1]) == f"color={folder}"
    assert max(Counter(file for file, _ in images).values()) in range(2, 6)
    assert open_store(store_uri).exists(SUCCESS_KEY)

    again = imagekiln.export(output, store_uri, format=file_format, partition_by="color")
    assert (again.written, again.files) == (0, result.files)


def test_an_export_says_which_finished_runs_are_not_in_it(tmp_path: Path) -> None:
    output = str(tmp_path / "nights")
    target = tmp_path / "exported"
    first = planned(tmp_path, output, ROWS[:4], run_id="first", limits={"failed_share": 0.5})
    fill(first, {1: not_ok(1)})
    aggregate(first.uri)
    imagekiln.export(output, target)
    before = jobs.files(target)

    night = planned(tmp_path, output, ROWS[4:], run_id="second", limits={"failed_share": 1})
    with_none = planned(tmp_path, output, ROWS[:2], run_id="third", limits={"failed_share": 1})
    fill(with_none, {0: not_ok(0), 1: not_ok(1)})
    aggregate(with_none.uri)
    assert imagekiln.export(output, target).written == 0  # nothing is new
    fill(night, {0: not_ok(0)})
    aggregate(night.uri)
    with pytest.raises(
        Incomplete,
        match=r"Already exported, but 1 finished run \(5 images\) is not in it: second\. ",
    ):
        imagekiln.export(output, target)
    assert jobs.files(target) == before
    assert imagekiln.export(output, tmp_path / "again").images == 8


def test_images_that_retry_made_are_not_in_an_earlier_export_of_the_run(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), ROWS[:4], limits={"failed_share": 0.5})
    fill(run, {1: not_ok(1)})
    aggregate(run.uri)
    imagekiln.export(run.uri, tmp_path / "exported")
    again = begin_round(run)
    (part,) = read_shard(again.store, again.plan, 0)
    format_of(again.plan.job).pack(part, [encoded(0)]).commit(again.store)
    aggregate(run.uri)
    with pytest.raises(Incomplete, match=r"\(1 image\) is not in it"):
        imagekiln.export(run.uri, tmp_path / "exported")


def test_readers_of_hive_layouts_read_an_export(output: str, tmp_path: Path) -> None:
    imagekiln.export(output, tmp_path, partition_by="color", columns=["seed", "color"])
    table = ds.dataset(tmp_path / "data", partitioning="hive").to_table()
    assert set(table.column_names) >= {"image", "image_id", "prompt", "seed", "color"}
    assert "steps" not in table.column_names
    assert set(table["color"].to_pylist()) == set(COLORS)


def test_partitions_of_the_largest_numbers_are_folders(tmp_path: Path) -> None:
    columns = {"prompt": ["a", "b", "c"], "number": pa.array([2**64 - 1, 1, None], pa.uint64())}
    run = jobs.plan(tmp_path, columns, carry=["number"])
    fill(run)
    aggregate(run.uri)
    imagekiln.export(run.uri, tmp_path / "export", partition_by="number")
    folders = {path.name for path in (tmp_path / "export" / "data").iterdir()}
    assert folders == {
        f"number={2**64 - 1}",
        "number=1",
        "number=__HIVE_DEFAULT_PARTITION__",
    }


class History:
    """Exports of one output into one folder, as processes that are stepped; each write is noted."""

    def __init__(self, output: str, destination: Path) -> None:
        self.destination = destination
        self.written = Counter[str]()
        self._export = partial(imagekiln.export, output, destination)

    def begin(self, name: str) -> Process:
        return Process(name, self._export)

    def note(self, operation: str, name: str) -> None:
        assert operation == "create"
        self.written[name] += 1

    def objects(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.destination)): path.read_bytes()
            for path in self.destination.rglob("*")
            if path.is_file() and not path.name.startswith(".writing-")
        }


@pytest.fixture
def undisturbed(output: str, tmp_path: Path, small_files: None) -> dict[str, bytes]:  # noqa: ARG001
    """The objects of an export that nothing disturbs."""
    imagekiln.export(f"{output}/night-files", tmp_path / "undisturbed")
    return History(output, tmp_path / "undisturbed").objects()


@pytest.mark.slow
def test_an_export_killed_before_any_access_resumes(
    output: str, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    accesses = 0
    is_done = False
    while not is_done:
        accesses += 1
        history = History(f"{output}/night-files", tmp_path / f"killed-{accesses}")
        with interleaving(history.destination, history.note):
            process = history.begin("killed")
            process.step(accesses)
            is_done = process.is_done
            process.kill(torn=True)
            resumed = history.begin("resumed")
            resumed.finish()
        assert resumed.error is None
        assert history.objects() == undisturbed
        assert set(history.written.values()) == {1}
        shutil.rmtree(history.destination)
    assert accesses > 2 * len(undisturbed)


def test_a_plan_of_which_a_bit_is_damaged_is_not_carried_out(output: str, tmp_path: Path) -> None:
    target = tmp_path / "export"
    imagekiln.export(output, target)
    path = target / "export.json"
    path.write_bytes(path.read_bytes().replace(b"data/00000.", b"data/00001."))
    with pytest.raises(BadInput, match=r"export\.json: has other bytes than were planned"):
        imagekiln.export(output, target)
    (target / SUCCESS_KEY).unlink()
    before = jobs.files(target)
    with pytest.raises(BadInput, match=r"export\.json: has other bytes than were planned"):
        imagekiln.export(output, target)
    assert jobs.files(target) == before


def test_an_export_that_another_version_has_begun_is_not_completed(
    output: str, tmp_path: Path
) -> None:
    target = tmp_path / "export"
    imagekiln.export(output, target)
    (target / SUCCESS_KEY).unlink()
    path = target / "export.json"
    plan = json.loads(path.read_bytes())
    path.write_text(json.dumps({**plan, "schema_version": 99}))
    with pytest.raises(BadInput, match="has version 99, and this Imagekiln reads 1"):
        imagekiln.export(output, target)
    assert not (target / SUCCESS_KEY).exists()


def test_an_export_that_wakes_up_while_images_are_removed_does_not_call_it_complete(
    output: str, tmp_path: Path
) -> None:
    target = tmp_path / "export"
    store = open_store(str(target))
    progress = CalledBack(lambda: add_forgotten(store, pa.array(["0" * 32])))
    with pytest.raises(BadInput, match="images were being removed"):
        export(output, str(target), progress=progress)
    assert not (target / SUCCESS_KEY).exists()


def test_an_export_that_was_killed_is_not_completed_with_an_image_taken_down_since(
    output: str, tmp_path: Path
) -> None:
    nights = str(shutil.copytree(output, tmp_path / "nights"))
    image_id = min(contents_by_id(nights))
    target = tmp_path / "export"

    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(nights, str(target), progress=CalledBack(end))
    assert any((target / "data").iterdir())
    imagekiln.forget(nights, ids=[image_id], remove=True)
    with pytest.raises(BadInput, match=f"image {image_id} was taken down after"):
        export(nights, str(target))
    assert not (target / SUCCESS_KEY).exists()
    assert image_id not in contents_by_id(nights)


def test_a_complete_export_is_not_taken_for_that_of_another_source(
    output: str, tmp_path: Path
) -> None:
    target = tmp_path / "export"
    run = f"{output}/night-parquet"
    imagekiln.export(run, target)
    for other in (f"{output}/night-files", output):
        with pytest.raises(BadInput, match="is not the run night-parquet that was exported before"):
            imagekiln.export(other, target)
    assert imagekiln.export(run, target).written == 0


def test_two_writers_make_one_export(
    output: str, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    choose = chance(7)
    for number in range(HISTORIES):
        history = History(f"{output}/night-files", tmp_path / f"both-{number}")
        with interleaving(history.destination, history.note):
            processes = [history.begin("one"), history.begin("other")]
            while not all(process.is_done for process in processes):
                choose.choice(processes).step(choose.randint(1, 8))
        assert [process.error for process in processes] == [None, None]
        assert history.objects() == undisturbed
        assert set(history.written.values()) == {1}


@pytest.mark.usefixtures("small_files")
def test_runs_that_end_later_are_in_no_export_that_was_planned(output: str, tmp_path: Path) -> None:
    nights = shutil.copytree(output, tmp_path / "nights")
    history = History(str(nights), tmp_path / "killed")
    with interleaving(history.destination, history.note):
        process = history.begin("killed")
        data = str(history.destination / "data")
        while not any(name.startswith(data) for name in history.written):
            process.step()
        process.kill()
    fill(later := planned(tmp_path / "later", str(nights), [{"prompt": "new"}], run_id="later"))
    aggregate(later.uri)
    with pytest.raises(Incomplete, match=r"1 finished run \(1 image\) is not in it: later\."):
        imagekiln.export(nights, history.destination)
    assert len(read_files(str(history.destination))) == len(contents_by_id(output))
    assert imagekiln.export(nights, tmp_path / "new").runs == len(FORMATS) + 1


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
    run = shutil.copytree(f"{output}/night-parquet", tmp_path / "night-parquet")
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

    shutil.copy(f"{output}/night-parquet/{part}", run / part)
    assert imagekiln.export(run, tmp_path / "out").images == IMAGES - 1


def test_a_destination_with_something_else_is_refused(output: str, tmp_path: Path) -> None:
    unfinished = planned(tmp_path / "p", str(tmp_path / "open"), [{"prompt": "a"}])
    for holder in (output, f"{output}/night-files", unfinished.uri):
        with pytest.raises(BadInput, match=r"holds a run, or the runs of a job\. Choose another"):
            imagekiln.export(output, holder)
    tmp_path /= "export"
    imagekiln.export(f"{output}/night-files", tmp_path)
    (tmp_path / SUCCESS_KEY).unlink()
    with pytest.raises(BadInput, match="holds an export with format parquet, and this"):
        imagekiln.export(f"{output}/night-files", tmp_path, format="webdataset")
    for source in (output, f"{output}/night-parquet"):
        with pytest.raises(BadInput, match="is not the run night-files"):
            imagekiln.export(source, tmp_path)
    (plan_rows,) = (tmp_path / "_plan").iterdir()
    damage(plan_rows)
    with pytest.raises(BadInput, match="has other bytes than were planned"):
        imagekiln.export(f"{output}/night-files", tmp_path)


@pytest.mark.parametrize("name", [CARD_KEY, manifest_chunk_key(0)])
def test_a_file_of_somebody_is_found_before_anything_is_copied(
    output: str, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(BadInput, match=f"{name}: is there already, and of no export"):
        imagekiln.export(output, tmp_path)
    assert file.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_what_cannot_be_exported_is_refused_in_a_sentence(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = f"{output}/night-files"
    with pytest.raises(BadInput, match="file size 1 kB: is no size"):
        imagekiln.export(run, tmp_path, file_size="1 kB")
    with pytest.raises(BadInput, match="format 'tar': is unknown"):
        imagekiln.export(run, tmp_path, format="tar")
    with pytest.raises(BadInput, match="has no column 'colour'"):
        imagekiln.export(run, tmp_path, partition_by="colour")
    with pytest.raises(BadInput, match="'guidance': is double"):
        imagekiln.export(run, tmp_path, partition_by="guidance")
    with pytest.raises(BadInput, match="'image_id': has another value for each image"):
        imagekiln.export(run, tmp_path, partition_by="image_id")
    with pytest.raises(Missing):
        imagekiln.export(tmp_path / "nothing", tmp_path)
    monkeypatch.setattr(selection, "MAX_PARTITIONS", 3)
    with pytest.raises(BadInput, match="more than 3 values"):
        imagekiln.export(run, tmp_path, partition_by="color")
    unmade = planned(tmp_path / "p", str(tmp_path / "open"), [{"prompt": "a"}])
    with pytest.raises(Incomplete):
        imagekiln.export(unmade.uri, tmp_path / "out")
    without = planned(tmp_path / "q", str(tmp_path / "none"), [{"prompt": "a"}])
    fill(without, {0: not_ok(0, "filtered")})
    aggregate(without.uri, failed_share=1.0)
    with pytest.raises(BadInput, match="has no image that is ok, so there is nothing to export"):
        imagekiln.export(without.uri, tmp_path / "out")
    assert not list(tmp_path.rglob(EXPORT_KEY))


@pytest.mark.usefixtures("small_files")
def test_an_export_has_no_more_files_than_its_plan_may_name(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagekiln.steps.export.cutting.MAX_FILES", 2)
    with pytest.raises(BadInput, match="at most 2 files, and this one would have more"):
        imagekiln.export(output, tmp_path / "export")
    assert not (tmp_path / "export" / EXPORT_KEY).exists()


@pytest.mark.usefixtures("small_files")
def test_pieces_of_a_manifest_have_each_image_once(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagekiln.steps.export.manifest.MANIFEST_ROWS", 7)
    imagekiln.export(output, tmp_path)
    pieces = [pq.read_metadata(path).num_rows for path in (tmp_path / "manifest").iterdir()]
    assert max(pieces) <= 7 < sum(pieces)
    ids = [row["image_id"] for row in read_manifest(str(tmp_path))]
    assert sorted(map(str, ids)) == sorted(contents_by_id(output))


def test_images_are_copied_in_pieces_that_fit_in_memory() -> None:
    sizes = [BATCH_BYTES // 2, BATCH_BYTES // 2, 1, 2 * BATCH_BYTES, *[0] * (BATCH_ROWS + 1)]
    rows = pa.table({"byte_size": sizes})
    pieces = list(cut_pieces(rows))
    assert pa.concat_tables(pieces).equals(rows)
    assert [piece.num_rows for piece in pieces] == [2, 1, 1, BATCH_ROWS, 1]


def test_working_folder_without_room_means_try_again(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", kibibytes=8) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with pytest.raises(TryAgain, match="the disk is full"):
            imagekiln.export(f"{output}/night-files", tmp_path / "export", partition_by="color")


def test_an_image_that_may_not_be_read_is_not_called_damaged(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[bytes]:
        raise StorageRefused("s3://bucket/part: access was refused. Check the key.")

    monkeypatch.setattr("imagekiln.steps.export.copying.read_images", refuse)
    with pytest.raises(StorageRefused, match=r"Check the key\.$"):
        imagekiln.export(output, tmp_path)


def test_a_value_that_is_too_long_for_the_name_of_a_folder_is_refused() -> None:
    with pytest.raises(BadInput, match="is too long for a folder's name"):
        partition_folder("color", "red" * 100)


def test_no_folder_has_more_files_than_a_hub_takes() -> None:
    count = 3 * MAX_FOLDER_FILES + 1
    keys = [data_key("a=b", number, count, ".tar") for number in range(count)]
    assert len(set(keys)) == count
    folders = Counter(key.rpartition("/")[0] for key in keys)
    assert max(*folders.values(), len(folders)) <= MAX_FOLDER_FILES


def test_tars_have_at_most_the_size_that_was_chosen(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_files(monkeypatch, 20_000, "webdataset")
    imagekiln.export(output, tmp_path, format="webdataset")
    sizes = [path.stat().st_size for path in (tmp_path / "data").iterdir()]
    assert max(sizes) <= 20_000
    assert sum(sizes) > 10_000 * (len(sizes) - 1)


def test_files_have_at_most_the_size_that_was_chosen() -> None:
    choose = chance(3)
    tables = [
        pa.table({"byte_size": [choose.randint(1, 400) for _ in range(choose.randint(1, 30))]})
        for _ in range(100)
    ]
    files = list(cut_rows(iter(tables), 1000, "parquet"))
    assert pa.concat_tables(files).equals(pa.concat_tables(tables))
    sizes = [sum(file["byte_size"].to_pylist()) + 8 * file.num_rows for file in files]
    assert max(sizes) <= 1000
    assert min(sizes[:-1]) > 500
    alone = pa.table({"byte_size": [2000, 5000]})
    assert [file.num_rows for file in cut_rows(iter([alone]), 1000, "parquet")] == [1, 1]
