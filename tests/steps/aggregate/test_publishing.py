"""A finished run that is aggregated again stays finished until its replacement is whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from imagekiln.steps import local
from imagekiln.steps.aggregate.step import aggregate, aggregate_run
from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.gc import gc
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.existing_images import successful_runs
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import (
    CARD_KEY,
    RATE_KEY,
    REPORT_KEY,
    SUCCESS_KEY,
    SUMMARY_KEY,
    SUSPENDED_KEY,
    TURNS_FOLDER,
    image_ids_key,
    manifest_key,
    part_key,
)
from imagekiln.steps.runs.rounds import Run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from tests.jobs import files
from tests.runs import begin_round, encoded, fill, not_ok, planned, renumbered


class Disk(LocalStore):
    """A disk that notes what changes, and fails once where it is told to: (operation, key).

    `meanwhile` is a key, and what others do while the process sleeps before it writes that.
    """

    def __init__(
        self,
        folder: str,
        fault: tuple[str, str] = ("", ""),
        meanwhile: tuple[str, Callable[[], object]] = ("", lambda: None),
    ) -> None:
        super().__init__(Path(folder))
        self._meanwhile = [meanwhile]
        self.changes: list[str] = []
        self.fault: tuple[str, str] | None = fault

    def _refuse(self, operation: str, key: str) -> None:
        if (operation, key) == self.fault:
            self.fault = None
            raise BadInput(f"{self.uri_of(key)}: access was refused (403).")

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        self._refuse("open", key)
        with super().open(key) as file:
            yield file

    def read(self, key: str) -> bytes:
        self._refuse("read", key)
        self._sleep(f"read {key}")
        return super().read(key)

    def replace_after(self, check: Callable[[], None], key: str, data: bytes) -> None:
        self._refuse("replace", key)
        self._sleep(key)
        self.changes.append(key)
        super().replace_after(check, key, data)

    def _sleep(self, key: str) -> None:
        """Let others work before an object is written for the first time."""
        if self._meanwhile and self._meanwhile[0][0] == key:
            _, work = self._meanwhile.pop()
            work()

    def remove(self, key: str) -> None:
        self._sleep(f"no {key}")
        self.changes.append(f"no {key}")
        super().remove(key)


@pytest.fixture
def mended_run(tmp_path: Path) -> PlanResult:
    """A finished run with a failed image, and a round that made it, not aggregated yet."""
    run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 0.1})
    fill(run, {9: not_ok(9)})
    aggregate(run.uri)
    retry_round = begin_round(run)
    (part,) = read_shard(retry_round.store, retry_round.plan, 0)
    format_of(run.plan.job).pack(part, [encoded(0)]).commit(retry_round.store)
    return run


def _without_turns(objects: dict[str, bytes]) -> dict[str, bytes]:
    """What a run has, but for the note that it was aggregated."""
    return {key: data for key, data in objects.items() if not key.startswith(TURNS_FOLDER)}


def _aggregate(run: PlanResult, disk: Disk) -> None:
    aggregate_run(Run(disk, run.plan))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "fault",
    [
        ("read", manifest_key(2)),
        ("replace", CARD_KEY),
        ("replace", REPORT_KEY),
    ],
    ids=" ".join,
)
def test_finished_run_survives_a_fault_before_its_replacement_is_whole(
    fault: tuple[str, str], mended_run: PlanResult
) -> None:
    folder = Path(mended_run.uri)
    before = files(folder)
    disk = Disk(mended_run.uri, fault)
    with pytest.raises(BadInput):
        _aggregate(mended_run, disk)
    after = _without_turns(files(folder))
    of_report = {name for name in after if name.startswith(("report/", CARD_KEY))}
    assert SUCCESS_KEY in after
    assert {name for name in after if after[name] != before.get(name)} <= of_report

    aggregate(mended_run.uri)
    assert verify(mended_run.uri).ok == 20


def test_finished_run_is_unfinished_only_while_its_manifest_changes(mended_run: PlanResult) -> None:
    disk = Disk(mended_run.uri)
    _aggregate(mended_run, disk)
    revoked = disk.changes.index(f"no {SUCCESS_KEY}")
    no_report = {name for name in disk.changes[:revoked] if not name.startswith("report/")}
    assert no_report <= {CARD_KEY}
    assert REPORT_KEY in disk.changes[:revoked]
    assert {manifest_key(1), image_ids_key(0), SUMMARY_KEY} <= {*disk.changes[revoked:]}
    assert disk.changes[-2:] == [SUCCESS_KEY, f"no {SUSPENDED_KEY}"]


def test_run_whose_replacement_was_interrupted_still_holds_its_images(
    mended_run: PlanResult,
) -> None:
    output = str(Path(mended_run.uri).parent)
    with pytest.raises(BadInput):
        _aggregate(mended_run, Disk(mended_run.uri, ("replace", manifest_key(1))))
    assert not open_store(mended_run.uri).exists(SUCCESS_KEY)
    assert gc(output, -1, remove=True).found == ()
    assert successful_runs(mended_run.plan.job.model_copy(update={"skip_existing": True})) == (
        mended_run.plan.run_id,
    )
    aggregate(mended_run.uri)
    assert not open_store(mended_run.uri).exists(SUSPENDED_KEY)
    assert verify(mended_run.uri).ok == 20


def test_run_whose_replacement_was_interrupted_remains_accepted_as_it_was(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 0})
    fill(run, {8: not_ok(8), 9: not_ok(9)})
    aggregate(run.uri, failed_share=0.1)
    retry_round = begin_round(run)
    (part,) = read_shard(retry_round.store, retry_round.plan, 0)
    outcomes = [encoded(0), not_ok(1)]
    format_of(run.plan.job).pack(part, outcomes).commit(retry_round.store)
    with pytest.raises(BadInput):
        _aggregate(run, Disk(run.uri, ("replace", manifest_key(1))))
    assert aggregate(run.uri).not_ok == 1


FURTHER_COMMANDS: dict[str, Callable[[PlanResult], object]] = {
    "aggregate": lambda run: aggregate(run.uri),
    "retry": lambda run: retry(run.uri),
    "run": lambda run: local.run(run.plan.job),
    "forget": lambda run: forget(run.uri, ForgetSelection(ids=("row-3",)), remove=True),
}


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("command", FURTHER_COMMANDS.values(), ids=FURTHER_COMMANDS)
def test_suspension_of_a_finished_run_ends_with_the_next_command(
    command: Callable[[PlanResult], object], tmp_path: Path
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"))
    fill(run)
    aggregate(run.uri)
    FURTHER_COMMANDS["forget"](run)
    store = open_store(run.uri)
    store.create(SUSPENDED_KEY, b"")  # as by one that is killed between `_SUCCESS` and its removal
    command(run)
    assert store.exists(SUCCESS_KEY)
    assert not store.exists(SUSPENDED_KEY)


def test_what_would_be_written_again_as_it_is_stays_untouched(mended_run: PlanResult) -> None:
    aggregate(mended_run.uri)
    disk = Disk(mended_run.uri)
    _aggregate(mended_run, disk)
    assert f"no {SUCCESS_KEY}" not in disk.changes
    assert {*disk.changes} <= {RATE_KEY, SUCCESS_KEY}


def test_price_of_a_finished_run_changes_while_it_is_finished(mended_run: PlanResult) -> None:
    aggregate(mended_run.uri)
    disk = Disk(mended_run.uri)
    aggregate_run(Run(disk, mended_run.plan), price=3.0)
    assert f"no {SUCCESS_KEY}" not in disk.changes
    assert b'"price_per_hour": 3.0' in open_store(mended_run.uri).read(SUMMARY_KEY)


def test_part_that_is_lost_indeed_ends_the_run_and_its_manifest_says_so(
    mended_run: PlanResult,
) -> None:
    store = open_store(mended_run.uri)
    store.remove(part_key(2, 0))
    with pytest.raises(KilnError, match="4 of 20 images are missing") as caught:
        aggregate(mended_run.uri)
    assert caught.value.exit_code == 3
    assert not store.exists(SUCCESS_KEY)


def test_part_that_stays_damaged_leaves_the_run_as_it_was(mended_run: PlanResult) -> None:
    store = open_store(mended_run.uri)
    store.replace(part_key(2, 0), b"no part")
    before = files(Path(mended_run.uri))
    with pytest.raises(BadInput, match="is damaged"):
        aggregate(mended_run.uri)
    assert _without_turns(files(Path(mended_run.uri))) == _without_turns(before)


def test_process_that_wakes_after_others_finished_the_run_leaves_it_finished(
    tmp_path: Path,
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"))
    store = open_store(run.uri)
    last = fill(run)[-1]
    part = store.read(last.key)
    store.remove(last.key)

    def finish() -> None:
        store.create(last.key, part)
        aggregate(run.uri)

    with pytest.raises(TryAgain, match="another process has begun to aggregate"):
        _aggregate(run, Disk(run.uri, meanwhile=(manifest_key(0), finish)))
    assert verify(run.uri).ok == 20


@pytest.mark.parametrize("asleep_at", [f"read {image_ids_key(0)}", CARD_KEY])
def test_process_that_wakes_after_another_round_does_not_publish_what_was_before_it(
    tmp_path: Path, asleep_at: str
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 0.5})
    fill(run, {9: not_ok(9), 10: not_ok(10)})
    aggregate(run.uri)

    def make_round(*images: EncodedImage) -> None:
        again = begin_round(run)
        (part,) = read_shard(again.store, again.plan, 0)
        format_of(run.plan.job).pack(part, renumbered([*images])).commit(again.store)

    def finish() -> None:
        aggregate(run.uri)
        make_round(encoded(1))
        aggregate(run.uri)

    make_round(encoded(0), not_ok(1))
    with pytest.raises(TryAgain, match="another process has begun to aggregate"):
        _aggregate(run, Disk(run.uri, meanwhile=(asleep_at, finish)))
    assert verify(run.uri).ok == 20


def test_process_that_wakes_to_remove_the_success_of_another_leaves_the_run_its_images(
    tmp_path: Path, mended_run: PlanResult
) -> None:
    def finish() -> None:
        aggregate(mended_run.uri)
        assert verify(mended_run.uri).ok == 20

    with pytest.raises(TryAgain, match="another process has begun to aggregate"):
        _aggregate(mended_run, Disk(mended_run.uri, meanwhile=(f"no {SUCCESS_KEY}", finish)))
    store = open_store(mended_run.uri)
    assert store.exists(SUSPENDED_KEY)
    assert gc(str(tmp_path / "out"), -1, remove=True).found == ()
    aggregate(mended_run.uri)
    assert verify(mended_run.uri).ok == 20
    assert not store.exists(SUSPENDED_KEY)


def test_of_two_that_revoke_success_at_once_neither_fails(mended_run: PlanResult) -> None:
    marker = Path(mended_run.uri, SUCCESS_KEY)
    _aggregate(mended_run, Disk(mended_run.uri, meanwhile=(f"no {SUCCESS_KEY}", marker.unlink)))
    assert verify(mended_run.uri).ok == 20
