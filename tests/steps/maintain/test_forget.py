"""What was taken down is gone from runs and exports, and nothing brings it back."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import imagekiln
from imagekiln import BadInput
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.parts import pack_part
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.faults import manifests
from tests.interleaving import Process, frozen, interleaving
from tests.jobs import files
from tests.runs import begin_retry, encoded, fill, job, not_ok, planned, retried, write_prompts
from tests.s3 import S3_AMONG_SLOW

IMAGES = 6
FAILED = 3  # in the run itself; a retry makes it again
TAKEN_DOWN = (1, FAILED)
NAMES = [f"r{index}" for index in TAKEN_DOWN]
PHRASE = "Jane DOE"
ROWS = [
    {
        "prompt": f"number {index}" + (" of jane doe" if index in TAKEN_DOWN else ""),
        "id": f"r{index}",
    }
    for index in range(IMAGES)
]


def make_run(scratch: Path, output: str, run_id: str = "night") -> str:
    """A run of noise, one image of which a retry made again."""
    result = planned(scratch, output, ROWS, limits={"failed_share": 0.5}, run_id=run_id)
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


def statuses(uri: str) -> dict[object, object]:
    """The status of each image of a run by the id of its row."""
    return {row["id"]: row["status"] for row in manifests(uri)}


def require_gone(uri: str, before: dict[str, bytes], names: list[str] = NAMES) -> None:
    """The images that were taken down are nowhere; the others are what they were."""
    assert images_by_row(uri) == {name: before[name] for name in before if name not in names}
    store = open_store(uri)
    for key in objects_in(store):
        content = store.read(key)
        assert not any(before[name] in content for name in names), key
    assert [name for name, status in statuses(uri).items() if status == "forgotten"] == names
    imagekiln.verify(uri)


@S3_AMONG_SLOW
def test_forgotten_images_are_gone_and_nothing_brings_them_back(
    tmp_path: Path, store_uri: str
) -> None:
    output = f"{store_uri}/out"
    uri = make_run(tmp_path / "scratch", output)
    before = images_by_row(uri)

    counted = imagekiln.forget(output, prompt_contains=[PHRASE])
    assert (counted.images, counted.removed) == (len(TAKEN_DOWN), False)
    assert images_by_row(uri) == before

    imagekiln.forget(output, prompt_contains=[PHRASE], remove=True)
    require_gone(uri, before)
    summary = aggregate(uri)
    assert (summary.ok, summary.not_ok, summary.retryable) == (IMAGES - 2, 0, 0)

    assert retry(uri).images == 0
    imagekiln.gc(output, older_than=0, remove=True)
    require_gone(uri, before)
    again = write_prompts(tmp_path / "again.parquet", ROWS)
    later = make_plan(job(again, output, run_id="later", skip_existing=True))
    assert later.plan.counts.images == 0
    with pytest.raises(BadInput, match="was taken down"):
        imagekiln.reproduce(uri, "r1")


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_forgetting_that_was_killed_is_finished_by_the_same_command(
    tmp_path: Path, every: int
) -> None:
    made = make_run(tmp_path / "scratch", str(tmp_path / "made"))
    before = images_by_row(made)
    undisturbed = tmp_path / "undisturbed" / Path(made).name
    shutil.copytree(made, undisturbed)
    imagekiln.forget(undisturbed, ids=NAMES, remove=True)
    accesses = 2
    is_done = False
    while not is_done:
        uri = tmp_path / f"killed-{accesses}" / Path(made).name
        shutil.copytree(made, uri)
        forget = partial(imagekiln.forget, uri, ids=NAMES, remove=True)
        with interleaving(uri, lambda *_: None):
            process = Process("killed", forget)
            process.step(accesses)
            is_done = process.is_done
            process.kill(torn=True)
        # Readers of commits have all of them, or none.
        left = set(images_by_row(str(uri)))
        assert left in (set(before), set(before) - set(NAMES))
        forget()
        require_gone(str(uri), before)
        assert files(uri / "images") == files(undisturbed / "images")
        shutil.rmtree(uri.parent)
        accesses += every


def test_of_several_who_forget_at_once_each_ends_with_all_of_it(tmp_path: Path) -> None:
    uri = make_run(tmp_path / "scratch", str(tmp_path / "out"))
    before = images_by_row(uri)
    forget = partial(imagekiln.forget, uri, remove=True)
    with interleaving(Path(uri), lambda *_: None):
        announced = frozen(partial(forget, ids=["r1"]), "create", "0000.f3.parquet")
        others = [
            frozen(partial(forget, ids=ids), "create", "000004.json")
            for ids in (["r1", "r5"], ["r3"])
        ]
        forget(ids=["r4"])
        for process in (announced, *others):
            process.finish()
            assert process.error is None
    require_gone(uri, before, ["r1", "r3", "r4", "r5"])
    # A part from which something was taken twice, and one that a retry made.
    assert {str(row["part"]) for row in manifests(uri)} == {
        "images/00000-0000.f3.parquet",
        "images/00000-0001.f7.parquet",
        "images/r1-00000-0000.f9.parquet",
    }


def test_pod_that_wakes_up_brings_no_image_back(tmp_path: Path) -> None:
    run = planned(tmp_path / "scratch", str(tmp_path / "out"), ROWS)
    store = open_store(run.uri)
    part, *_ = read_shard(store, run.plan, 0)
    packed = pack_part(part, [encoded(place) for place in range(part.rows.num_rows)])
    with interleaving(Path(run.uri), lambda *_: None):
        late = frozen(lambda: packed.commit(store), "create", part.key)
        fill(run, {place: encoded(place) for place in range(IMAGES)})
        aggregate(run.uri)
        before = images_by_row(run.uri)
        imagekiln.forget(run.uri, prompt_contains=[PHRASE], remove=True)
        late.finish()
    assert late.error is None
    require_gone(run.uri, before)
    assert imagekiln.generate(run.uri, 0, progress=False) is None
    require_gone(run.uri, before)


def test_run_is_neither_retried_nor_counted_otherwise_while_images_are_taken_down(
    tmp_path: Path,
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), ROWS, limits={"failed_share": 1})
    fill(run, {place: encoded(place) for place in range(IMAGES)} | {4: not_ok(0)})
    aggregate(run.uri)
    before = images_by_row(run.uri)
    forget = partial(imagekiln.forget, run.uri, ids=["r1"], remove=True)
    with interleaving(tmp_path, lambda *_: None):
        frozen(forget, "create", "00000-0000.f1.parquet").kill()
    with pytest.raises(TryAgain, match="repeat it first"):
        retry(run.uri)
    summary = aggregate(run.uri, price={"cpu": 1.0})
    assert (summary.ok, summary.forgotten) == (5, 0)
    assert images_by_row(run.uri) == before
    forget()
    assert (aggregate(run.uri).ok, aggregate(run.uri).forgotten) == (4, 1)
    require_gone(run.uri, before, ["r1"])
    assert retry(run.uri).images == 1


def test_what_cannot_be_forgotten_is_refused(tmp_path: Path) -> None:
    unfinished = planned(tmp_path / "p", str(tmp_path / "out"), ROWS, run_id="open")
    with pytest.raises(BadInput, match="Nothing says which"):
        imagekiln.forget(unfinished.uri, prompt_contains=[""])
    with pytest.raises(BadInput, match="'abc': is no SHA-256"):
        imagekiln.forget(unfinished.uri, prompt_sha256=["abc"])
    assert not any("forgotten" in key for key in objects_in(open_store(unfinished.uri)))


def test_nothing_is_removed_if_a_run_is_not_complete_or_damaged(tmp_path: Path) -> None:
    output = tmp_path / "out"
    whole = make_run(tmp_path / "first", str(output))
    before = images_by_row(whole)
    unfinished = Path(planned(tmp_path / "second", str(output), ROWS, run_id="open").uri)
    with pytest.raises(BadInput, match=r"open: is not complete, so a process may still make"):
        imagekiln.forget(output, ids=["r1"], remove=True)
    (unfinished / PLAN_KEY).write_text("not a plan")
    with pytest.raises(BadInput, match="is not a readable plan"):
        imagekiln.forget(output, ids=["r1"], remove=True)
    assert images_by_row(whole) == before
    shutil.rmtree(unfinished)
    assert imagekiln.forget(output, ids=["r1"]).images == 1


def test_a_retry_that_nobody_can_make_is_ended_by_a_takedown(tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    half = planned(tmp_path, output, ROWS, run_id="half", limits={"failed_share": 0.5})
    fill(half, {FAILED: not_ok(0)})
    aggregate(half.uri)
    begin_retry(half)
    ids = ["r0", "r1"]
    assert imagekiln.forget(output, ids=ids).images == len(ids)
    imagekiln.forget(output, ids=ids, remove=True)
    assert not images_by_row(half.uri).keys() & set(ids)
    assert begin_retry(half).counts.images == 1, "what it left may be tried again"


def test_ids_that_nothing_has_are_named(tmp_path: Path) -> None:
    uri = make_run(tmp_path / "scratch", str(tmp_path / "out"))
    image_id = str(manifests(uri)[2]["image_id"])
    result = imagekiln.forget(tmp_path / "out", ids=["r9", "r1", image_id, "r9", "x"])
    assert (result.images, result.unknown_ids) == (2, ("r9", "x"))
