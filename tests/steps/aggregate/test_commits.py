"""What an aggregation commits: whole, once, whoever else is at work and wherever it is killed."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.errors import BadInput, Incomplete, KilnError, TryAgain
from imagekiln.steps.local import run as run_job
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs import commits
from imagekiln.steps.runs.commits import create_commit, read_commit, read_head
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import CARD_KEY, REPORT_KEY, SUCCESS_KEY, commit_key, part_key
from imagekiln.steps.runs.parts import pack_part
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.faults import manifests
from tests.interleaving import Process, frozen, interleaving
from tests.jobs import files
from tests.runs import begin_retry, encoded, fill, not_ok, planned, renumbered

ACCESSES = 1000  # more than an aggregation makes


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PlanResult]:
    """A run of 20 images with all parts, whose processes can be frozen; one image failed."""
    with interleaving(tmp_path, lambda *_: None):
        planned_run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 0.1})
        fill(planned_run, {9: not_ok(9)})
        yield planned_run


def make_retry(run: PlanResult, *images: EncodedImage) -> None:
    """Announce a retry of one part, and make it."""
    plan = begin_retry(run)
    store = open_store(run.uri)
    (part,) = read_shard(store, plan, 0)
    pack_part(part, renumbered([*images])).commit(store)


def commit_count(run: PlanResult) -> int:
    return read_head(open_store(run.uri)).number + 1


def state(uri: str) -> tuple[object, ...]:
    """What a reader gets of a run: the rows of its manifest, and its counts."""
    return manifests(uri), load_summary(open_store(uri))


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_an_aggregation_killed_before_any_write_is_repeated_with_the_same_end(
    run: PlanResult, tmp_path: Path, torn: bool
) -> None:
    aggregate(run.uri)
    make_retry(run, encoded(1))
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "out", saved)
    aggregate(run.uri)
    expected, names = state(run.uri), {*files(Path(run.uri))}
    for writes in range(1, ACCESSES):
        shutil.rmtree(tmp_path / "out")
        shutil.copytree(saved, tmp_path / "out")
        process = Process("aggregate", lambda: aggregate(run.uri))
        process.step_to_write(writes)
        if process.is_done:
            break
        process.kill(torn=torn)
        assert verify(run.uri).ok in (19, 20)  # whole at every instant
        aggregate(run.uri)
        assert state(run.uri) == expected
        assert {name for name in files(Path(run.uri)) if ".writing" not in name} == names
    assert writes > 10


def test_who_loses_a_number_counts_again_from_the_commit_that_won_it(run: PlanResult) -> None:
    store = open_store(run.uri)
    late = store.read(part_key(1, 1))
    store.remove(part_key(1, 1))
    first = frozen(lambda: aggregate(run.uri), "create", commit_key(0))
    with pytest.raises(Incomplete):
        aggregate(run.uri)
    store.create(part_key(1, 1), late)
    first.finish()
    assert first.error is None
    assert load_summary(store).missing == 0
    assert verify(run.uri).ok == 19
    assert commit_count(run) == 2


def test_two_that_count_the_same_make_one_commit(run: PlanResult) -> None:
    first = frozen(lambda: aggregate(run.uri), "create", commit_key(0))
    aggregate(run.uri)
    first.finish()
    assert first.error is None
    assert commit_count(run) == 1


def test_who_loses_every_number_is_told_to_try_again(
    run: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(run.uri)

    def overtaken(of_run: Store, head: commits.Head, commit: commits.Commit) -> object:
        create_commit(store, head, replace(head.commit, at=0.0))
        return create_commit(of_run, head, commit)

    monkeypatch.setattr("imagekiln.steps.aggregate.step.create_commit", overtaken)
    with pytest.raises(TryAgain, match="other processes keep changing this run"):
        aggregate(run.uri)


def test_an_aggregation_that_sleeps_until_images_are_taken_down_takes_no_buried_part_for_damage(
    run: PlanResult,
) -> None:
    sleeper = frozen(lambda: aggregate(run.uri), "exists", part_key(2, 0))
    aggregate(run.uri)
    forget(run.uri, ForgetSelection(ids=("row-17",)), remove=True)
    sleeper.finish()
    assert sleeper.error is None
    assert verify(run.uri).ok == 18
    assert load_summary(open_store(run.uri)).statuses["forgotten"] == 1


@pytest.mark.parametrize("asleep_before", [CARD_KEY, REPORT_KEY, "report/thumbnails/0003.jpg"])
def test_hints_of_a_commit_that_is_not_the_highest_any_more_are_not_written(
    run: PlanResult, asleep_before: str
) -> None:
    operation = "exists" if asleep_before == CARD_KEY else "replace"
    key = commit_key(1) if asleep_before == CARD_KEY else asleep_before
    sleeper = frozen(lambda: aggregate(run.uri), operation, key)
    aggregate(run.uri, price=3.0)
    forget(run.uri, ForgetSelection(ids=("row-1",)), remove=True)
    sleeper.finish()
    store = open_store(run.uri)
    assert "| forgotten | 1 |" in store.read(CARD_KEY).decode()


def test_what_did_not_change_is_no_commit_and_what_is_absent_is_made(run: PlanResult) -> None:
    aggregate(run.uri)
    store = open_store(run.uri)
    before = files(Path(run.uri))
    for name in (CARD_KEY, REPORT_KEY, SUCCESS_KEY):
        store.remove(name)
    aggregate(run.uri)
    assert files(Path(run.uri)) == before


def test_a_command_with_nothing_to_do_writes_what_a_killed_one_left_out(run: PlanResult) -> None:
    process = frozen(lambda: aggregate(run.uri), "replace", CARD_KEY)
    process.kill()
    store = open_store(run.uri)
    assert open_run(run.uri).is_finished
    assert not store.exists(SUCCESS_KEY)
    assert run_job(run.plan.job).before
    assert all(map(store.exists, (CARD_KEY, REPORT_KEY, SUCCESS_KEY)))


@pytest.mark.parametrize(
    "change",
    [
        lambda uri: aggregate(uri, price=3.0),
        lambda uri: aggregate(uri, failed_share=0.5),
    ],
    ids=["price", "failed share"],
)
def test_another_price_or_share_is_a_commit_of_the_same_images(
    run: PlanResult, change: Callable[[str], object]
) -> None:
    aggregate(run.uri)
    store = open_store(run.uri)
    first = read_commit(store, 0)
    change(run.uri)
    second = read_commit(store, 1)
    assert second.manifests == first.manifests
    assert (second.summary, second.terms) != (first.summary, first.terms)
    change(run.uri)
    assert commit_count(run) == 2


def test_what_a_finished_run_was_accepted_with_stays_accepted(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 0})
    fill(run, {8: not_ok(8), 9: not_ok(9)})
    with pytest.raises(Incomplete):
        aggregate(run.uri)
    assert not open_run(run.uri).is_finished
    aggregate(run.uri, failed_share=0.1)
    make_retry(run, encoded(0), not_ok(1))
    assert open_run(run.uri).is_finished, "while the retry is made, too"
    assert aggregate(run.uri).not_ok == 1


def test_a_part_that_is_damaged_leaves_the_run_as_it_was(run: PlanResult) -> None:
    aggregate(run.uri)
    make_retry(run, encoded(0))
    store = open_store(run.uri)
    (key,) = (entry.key for entry in store.list_folder("images") if "/r1-" in entry.key)
    store.replace(key, b"no part")
    before = state(run.uri)
    with pytest.raises(BadInput, match="is damaged"):
        aggregate(run.uri)
    assert state(run.uri) == before
    assert open_run(run.uri).is_finished


def _edited(store: Store, old: bytes, new: bytes) -> None:
    content = store.read(commit_key(0))
    assert old in content
    store.replace(commit_key(0), content.replace(old, new, 1))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda store: store.replace(commit_key(0), b"{"), "is not a readable commit"),
        (lambda store: _edited(store, b'"manifest/', b'"../other/'), r"manifests\.0"),
        (lambda store: _edited(store, b'"statuses":{', b'"statuses":{"x":-1,'), "a summary"),
        (lambda store: _edited(store, b'"schema_version":2', b'"schema_version":99'), "99"),
    ],
    ids=["cut", "manifest", "summary", "version"],
)
def test_a_commit_that_is_damaged_or_a_strangers_is_refused_in_a_sentence(
    run: PlanResult, damage: Callable[[Store], None], sentence: str
) -> None:
    aggregate(run.uri)
    damage(open_store(run.uri))
    with pytest.raises(KilnError, match=sentence) as caught:
        aggregate(run.uri)
    assert caught.value.exit_code == 2
    assert commit_key(0) in str(caught.value)
