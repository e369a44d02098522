"""What was taken down is gone from runs and exports, and nothing brings it back."""

import shutil
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import imagekiln
from imagekiln import BadInput, Incomplete
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.keys import (
    PLAN_KEY,
    SUCCESS_KEY,
    SUSPENDED_KEY,
    part_key,
)
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.cli.main import main
from tests.faults import manifests
from tests.interleaving import Process, frozen, interleaving
from tests.jobs import files
from tests.runs import (
    begin_round,
    encoded,
    fill,
    finished,
    job,
    not_ok,
    planned,
    retried,
    write_prompts,
)

FORMATS = ("parquet", "webdataset", "files")
IMAGES = 6
FAILED = 3  # in the run itself; a round makes it again
TAKEN_DOWN = (1, FAILED)
PHRASE = "Jane DOE"
ROWS = [
    {
        "prompt": f"number {index}" + (" of jane doe" if index in TAKEN_DOWN else ""),
        "id": f"r{index}",
    }
    for index in range(IMAGES)
]


def make_run(scratch: Path, output: str, format_name: str) -> str:
    """A run of noise, one image of which a round made again."""
    changes = {"run_id": f"night-{format_name}", "format": format_name}
    result = planned(scratch, output, ROWS, limits={"failed_share": 0.5}, **changes)
    pictures = {index: encoded(index) for index in range(IMAGES)}
    return retried(result, pictures | {FAILED: not_ok(0)}, encoded(FAILED))


def objects_in(store: Store, folder: str = "") -> Iterator[str]:
    """The keys of all objects in a folder, and below it."""
    for entry in store.list_folder(folder):
        if entry.is_folder:
            yield from objects_in(store, entry.key)
        else:
            yield entry.key


def images_by_row(uri: str) -> dict[str, bytes]:
    """The bytes of the images of a run by the ids of their rows."""
    batches = imagekiln.dataset(uri, columns=["id", "image"]).to_batches()
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {row["id"]: row["image"]["bytes"] for row in rows}


def require_gone(uri: str, before: dict[str, bytes]) -> None:
    """The images that were taken down are nowhere; the others are what they were."""
    down = [f"r{index}" for index in TAKEN_DOWN]
    assert images_by_row(uri) == {name: before[name] for name in before if name not in down}
    store = open_store(uri)
    for key in objects_in(store):
        content = store.read(key)
        assert not any(before[name] in content for name in down), key
    statuses = {str(row["id"]): row["status"] for row in manifests(uri)}
    assert [name for name in statuses if statuses[name] == "forgotten"] == down
    imagekiln.verify(uri)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("format_name", "place"),
    [
        ("parquet", "disk"),
        ("files", "disk"),
        *[pytest.param(name, "s3", marks=pytest.mark.slow) for name in FORMATS],
    ],
)
def test_forgotten_images_are_gone_and_nothing_brings_them_back(
    tmp_path: Path, request: pytest.FixtureRequest, format_name: str, place: str
) -> None:
    folder = str(tmp_path) if place == "disk" else request.getfixturevalue("s3_bucket")
    output = f"{folder}/out"
    uri = make_run(tmp_path / "scratch", output, format_name)
    before = images_by_row(uri)

    counted = imagekiln.forget(output, prompt_contains=[PHRASE])
    assert (counted.images, counted.removed) == (len(TAKEN_DOWN), False)
    assert images_by_row(uri) == before

    imagekiln.forget(output, prompt_contains=[PHRASE], remove=True)
    require_gone(uri, before)
    summary = aggregate(uri)
    assert (summary.ok, summary.not_ok, summary.retryable) == (IMAGES - 2, 0, 0)

    store = open_store(uri)
    assert plan_next_round(store, load_plan(store)) is None
    imagekiln.gc(output, older_than=0, remove=True)
    require_gone(uri, before)
    again = write_prompts(tmp_path / "again.parquet", ROWS)
    later = make_plan(job(again, output, run_id="later", skip_existing=True))
    assert later.plan.counts.images == 0
    with pytest.raises(BadInput, match="was taken down"):
        imagekiln.reproduce(uri, "r1")


@pytest.mark.parametrize(
    ("format_name", "every"),
    [("webdataset", 70), *[pytest.param(name, 1, marks=pytest.mark.slow) for name in FORMATS]],
)
def test_forgetting_that_was_killed_is_finished_by_the_same_command(
    tmp_path: Path, format_name: str, every: int
) -> None:
    made = make_run(tmp_path / "scratch", str(tmp_path / "made"), format_name)
    before = images_by_row(made)
    down = {before[f"r{index}"] for index in TAKEN_DOWN}
    accesses = 2
    is_done = False
    while not is_done:
        uri = tmp_path / f"killed-{accesses}" / Path(made).name
        shutil.copytree(made, uri)
        forget = partial(imagekiln.forget, uri, ids=["r1", f"r{FAILED}"], remove=True)
        with interleaving(uri, lambda *_: None):
            process = Process("killed", forget)
            process.step(accesses)
            is_done = process.is_done
            process.kill(torn=True)
            if (uri / SUCCESS_KEY).exists():  # nobody reads a part that lacks what it should have
                left = set(images_by_row(str(uri)).values())
                assert left in (set(before.values()), set(before.values()) - down)
        forget()
        imagekiln.gc(uri.parent, older_than=0, remove=True)
        require_gone(str(uri), before)
        shutil.rmtree(uri.parent)
        accesses += every


@pytest.mark.slow
def test_a_part_that_is_made_again_has_no_forgotten_image(tmp_path: Path) -> None:
    uri = str(tmp_path / "run")
    store = finished(Path(uri))
    before = images_by_row(uri)
    prompt_hash = sha256(b"a red circle number 5").hexdigest()
    imagekiln.forget(uri, prompt_sha256=[prompt_hash], remove=True)
    emptied = store.read(part_key(0, 1))
    store.remove(part_key(0, 1))
    imagekiln.generate(uri, 0, progress=False)
    assert store.read(part_key(0, 1)) == emptied
    del before["row-5"]
    assert images_by_row(uri) == before
    imagekiln.verify(uri)


@pytest.mark.parametrize("moment", ["drawing", "storing", "reading"])
def test_a_writer_that_wakes_up_brings_no_file_back(tmp_path: Path, moment: str) -> None:
    run = planned(tmp_path / "scratch", str(tmp_path / "out"), ROWS, format="files")
    store = open_store(run.uri)
    part, *_ = read_shard(store, run.plan, 0)
    images = [encoded(place) for place in range(part.rows.num_rows)]
    packed = format_of(run.plan.job).pack(part, images)
    access = ("exists", part.key) if moment == "drawing" else ("create", "0000-00001.png")
    with interleaving(Path(run.uri), lambda *_: None):
        late = frozen(lambda: packed.commit(store), *access)
        fill(run, dict(enumerate(map(encoded, range(IMAGES)))))
        if moment == "reading":
            late.step()
        aggregate(run.uri)
        before = images_by_row(run.uri)
        imagekiln.forget(run.uri, prompt_contains=[PHRASE], remove=True)
        late.finish()
    assert late.error is None or isinstance(late.error, TryAgain)
    require_gone(run.uri, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file_format", ["parquet", pytest.param("webdataset", marks=pytest.mark.slow)]
)
def test_exports_that_are_named_lose_the_images_too(tmp_path: Path, file_format: str) -> None:
    uri = make_run(tmp_path / "scratch", str(tmp_path / "out"), "parquet")
    before = images_by_row(uri)
    export = tmp_path / "export"
    imagekiln.export(uri, export, format=file_format)
    imagekiln.forget(uri, prompt_contains=[PHRASE], remove=True)

    accesses = 1
    killed = export
    is_done = False
    forget = partial(imagekiln.forget, uri, prompt_contains=[PHRASE], remove=True)
    while not is_done:
        killed = tmp_path / f"killed-{accesses}"
        shutil.copytree(export, killed)
        with interleaving(killed, lambda *_: None):
            process = Process("killed", partial(forget, exports=[killed]))
            process.step(accesses)
            is_done = process.is_done
            process.kill(torn=True)
        if files(killed / "data") != files(export / "data"):  # readers of all have been told
            assert files(killed).get(SUCCESS_KEY) != f"{IMAGES} images\n".encode()
        counted = forget(exports=[killed])
        assert counted.exports[0].images == len(TAKEN_DOWN)
        assert (killed / SUCCESS_KEY).read_text() == f"{IMAGES - 2} images\n"
        accesses += 1

    (data,) = [path for path in (killed / "data").iterdir() if path.suffix != ""]
    content = data.read_bytes()
    assert [name for name in before if before[name] not in content] == ["r1", f"r{FAILED}"]
    rows = pq.read_table(killed / "manifest").to_pylist()
    statuses = {row["id"]: (row["status"], row["row"]) for row in rows}
    assert statuses["r1"] == statuses[f"r{FAILED}"] == ("forgotten", None)
    assert [place for _, place in statuses.values() if place is not None] == [0, 1, 2, 3]
    again = imagekiln.export(uri, killed, format=file_format)
    sizes = [len(before[name]) for name in before if name not in ("r1", f"r{FAILED}")]
    assert (again.written, again.images, again.bytes) == (0, IMAGES - 2, sum(sizes))


@pytest.mark.slow
def test_night_that_is_planned_while_images_are_taken_down_makes_none_again(
    tmp_path: Path,
) -> None:
    output = str(tmp_path / "out")
    uri = make_run(tmp_path / "scratch", output, "parquet")
    forget = partial(imagekiln.forget, uri, prompt_contains=[PHRASE], remove=True)
    with interleaving(tmp_path, lambda *_: None):
        frozen(forget, "replace_after", part_key(0, 0)).kill()
    store = open_store(uri)
    assert not store.exists(SUCCESS_KEY)
    again = write_prompts(tmp_path / "again.parquet", ROWS)
    later = make_plan(job(again, output, run_id="later", skip_existing=True))
    assert later.plan.counts.images == 0
    forget()
    assert store.exists(SUCCESS_KEY)
    assert not store.exists(SUSPENDED_KEY)


def test_what_cannot_be_forgotten_is_refused(tmp_path: Path) -> None:
    unfinished = planned(tmp_path / "p", str(tmp_path / "out"), ROWS, run_id="open")
    with pytest.raises(BadInput, match="is not finished"):
        imagekiln.forget(tmp_path / "out", ids=["r1"], remove=True)
    with pytest.raises(BadInput, match="Nothing says which"):
        imagekiln.forget(unfinished.uri, prompt_contains=[""])
    with pytest.raises(BadInput, match="'abc': is no SHA-256"):
        imagekiln.forget(unfinished.uri, prompt_sha256=["abc"])
    assert not any("forgotten" in key for key in objects_in(open_store(unfinished.uri)))
    assert open_store(unfinished.uri).exists(PLAN_KEY)


def test_nothing_is_removed_where_a_run_or_a_round_is_not_finished(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    whole = make_run(tmp_path / "first", output, "files")
    before = images_by_row(whole)
    unfinished = planned(tmp_path / "second", output, ROWS, run_id="open")
    with pytest.raises(BadInput, match=r"open: is not finished, so a process may still make"):
        imagekiln.forget(output, ids=["r1"], remove=True)
    shutil.rmtree(unfinished.uri)

    half = planned(tmp_path / "third", output, ROWS, run_id="round", limits={"failed_share": 0.5})
    fill(half, {FAILED: not_ok(0)})
    aggregate(half.uri)
    begin_round(half)
    with pytest.raises(BadInput, match=r"round/retry-1: this round is not finished\. First resume"):
        imagekiln.forget(output, ids=["r1"], remove=True)
    assert images_by_row(whole) == before


def test_an_export_that_is_not_complete_is_found_before_anything_is_removed(
    tmp_path: Path,
) -> None:
    uri = make_run(tmp_path / "scratch", str(tmp_path / "out"), "parquet")
    export = tmp_path / "export"
    imagekiln.export(uri, export)
    (export / SUCCESS_KEY).unlink()
    before = files(export)
    with pytest.raises(BadInput, match="is not complete, so nothing can be removed from it yet"):
        imagekiln.forget(uri, ids=["r1"], exports=[export], remove=True)
    assert files(export) == before
    assert "r1" in images_by_row(uri)


def test_an_export_that_was_not_named_says_what_it_still_has(tmp_path: Path) -> None:
    output = tmp_path / "out"
    make_run(tmp_path / "scratch", str(output), "parquet")
    named, other = tmp_path / "named", tmp_path / "other"
    for export in (named, other):
        imagekiln.export(output, export)
    result = imagekiln.forget(output, prompt_contains=[PHRASE], exports=[named], remove=True)
    assert "Exports not named keep them" in str(result).splitlines()[-1]
    assert imagekiln.export(output, named).images == IMAGES - 2
    with pytest.raises(Incomplete, match="other: 2 images in it were taken down") as caught:
        imagekiln.export(output, other)
    _, command, _ = str(caught.value).split("`")
    assert CliRunner().invoke(main, command.split()[1:]).exit_code == 0
    with pytest.raises(Incomplete, match="other: 1 image in it was taken down"):
        imagekiln.export(output, other)
    imagekiln.forget(output, prompt_contains=[PHRASE], exports=[other], remove=True)
    assert imagekiln.export(output, other).images == IMAGES - 2


def test_a_run_whose_plan_is_damaged_is_not_passed_over(tmp_path: Path) -> None:
    output = tmp_path / "out"
    damaged = Path(make_run(tmp_path / "first", str(output), "parquet"))
    whole = make_run(tmp_path / "second", str(output), "files")
    (damaged / PLAN_KEY).write_text("not a plan")
    with pytest.raises(BadInput, match="is not a readable plan"):
        imagekiln.forget(output, ids=["r1"], remove=True)
    assert "r1" in images_by_row(whole)
    shutil.rmtree(damaged)
    assert imagekiln.forget(output, ids=["r1"]).images == 1


def test_ids_that_nothing_has_are_named(tmp_path: Path) -> None:
    uri = make_run(tmp_path / "scratch", str(tmp_path / "out"), "parquet")
    image_id = str(manifests(uri)[2]["image_id"])
    result = imagekiln.forget(tmp_path / "out", ids=["r9", "r1", image_id, "r9", "x"])
    assert (result.images, result.unknown_ids) == (2, ("r9", "x"))


def test_the_hash_of_a_prompt_is_read_in_capitals_too(tmp_path: Path) -> None:
    uri = make_run(tmp_path / "scratch", str(tmp_path / "out"), "parquet")
    digest = sha256(ROWS[0]["prompt"].encode()).hexdigest().upper()
    assert imagekiln.forget(uri, prompt_sha256=[digest]).images == 1
