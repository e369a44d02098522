"""The three stages of a shard, each without threads of its own or a model: draw, encode, write."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from imagekiln.steps.generate.attempt import run_pipeline
from imagekiln.steps.generate.diffusion.recovery import BatchRecovery, DrawBatch
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.generate.stages import (
    Batch,
    DrawnBatch,
    EncodedPart,
    commit_parts,
    draw_batches,
    split_into_batches,
)
from imagekiln.steps.job.output import Png
from imagekiln.steps.runs.image import DrawnImage, ImageRow
from imagekiln.steps.runs.parts import PackedPart, Part, pack_part
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import COMMIT_RESERVE_SECONDS, GRACE_SECONDS, Stop, Stopped
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from imagekiln.steps.storage.store import Store
from tests.runs import PROMPTS, picture, planned


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Part, ...]:
    """A planned shard: parts of 4, 4, 4 and 2 images, the last of which has another shape."""
    scratch = tmp_path_factory.mktemp("stages")
    rows = [
        dict(row) | {"steps": 3 if place == 5 else 2, "seed": place}
        for place, row in enumerate(PROMPTS[:14])
    ]
    there = planned(scratch, str(scratch / "out"), rows, shard={"images": 100})
    return read_shard(open_store(there.uri), there.plan, 0)


class Model:
    """Draws noise; `then` is called after each batch."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.batches: list[list[int]] = []
        self._then = then

    def __call__(self, rows: Sequence[ImageRow], size: int) -> list[DrawnImage]:
        assert len(rows) <= size
        self.batches.append([row.index_in_part for row in rows])
        self._then()
        return [picture(row.index_in_part) for row in rows]


def _batches(parts: Sequence[Part], size: int) -> list[Batch]:
    return [batch for part in parts for batch in split_into_batches(part, lambda _: size)]


def _draw(
    wanted: Sequence[Part], model: DrawBatch, stop: Stop | None = None, size: int = 2
) -> Iterator[DrawnBatch]:
    recovery = BatchRecovery(model, lambda _: size)
    return draw_batches(_batches(wanted, size), recovery, stop or Stop())


def _names(drawn: Iterator[DrawnBatch]) -> list[tuple[str, list[int]]]:
    return [(batch.part.key, [each.index_in_part for each in batch.images]) for batch in drawn]


def test_parts_are_drawn_in_order_and_no_batch_crosses_a_part_or_a_shape(
    wanted: tuple[Part, ...],
) -> None:
    full = [(part.key, batch) for part in wanted[:3] for batch in ([0, 1], [2, 3])]
    assert _names(_draw(wanted, Model())) == [*full, (wanted[3].key, [0]), (wanted[3].key, [1])]


def test_no_new_part_is_begun_once_asked_to_stop(wanted: tuple[Part, ...]) -> None:
    stop = Stop()
    model = Model(then=stop.request)
    drawn = _draw(wanted, model, stop, size=4)
    assert next(drawn).part is wanted[0]
    with pytest.raises(Stopped):
        next(drawn)
    assert model.batches == [[0, 1, 2, 3]]


def test_a_part_at_hand_is_finished_where_the_time_suffices(wanted: tuple[Part, ...]) -> None:
    stop = Stop()
    drawn = _draw(wanted, Model(then=stop.request), stop, size=1)
    assert [next(drawn).images[0].index_in_part for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(Stopped):
        next(drawn)


def test_a_part_at_hand_is_dropped_where_the_time_does_not_suffice(
    wanted: tuple[Part, ...],
) -> None:
    stop = Stop()

    def asked_long_ago() -> None:
        stop.requested_at = time.monotonic() - GRACE_SECONDS + COMMIT_RESERVE_SECONDS

    drawn = _draw(wanted, Model(asked_long_ago), stop, size=1)
    next(drawn)
    with pytest.raises(Stopped):
        next(drawn)


def test_few_parts_are_in_memory_while_a_store_does_not_answer(
    wanted: tuple[Part, ...], tmp_path: Path
) -> None:
    answer = Event()

    class SlowStore(LocalStore):
        def create(self, key: str, data: bytes) -> bool:  # noqa: ARG002  # nothing is written
            return answer.wait(60)

    drawn: list[int] = []

    def draw() -> Iterator[DrawnBatch]:
        for number in range(40):
            drawn.append(number)
            yield DrawnBatch(wanted[0], [], [])

    def finish(batches: Iterator[DrawnBatch]) -> Iterator[EncodedPart]:
        return (EncodedPart(PackedPart(batch.part, b""), StageSeconds()) for batch in batches)

    def run() -> None:
        run_pipeline(draw(), finish, SlowStore(tmp_path), NoProgress(), Stop())

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        with pytest.raises(TimeoutError):
            running.result(0.5)
        waiting = len(drawn)
        answer.set()
        running.result(60)
    assert 0 < waiting <= 8
    assert len(drawn) == 40


def _encoded(part: Part, places: Sequence[int]) -> EncodedPart:
    images = [
        encode_drawn_image(DrawnImage(place, picture(noise).rgb), Png())
        for place, noise in enumerate(places)
    ]
    return EncodedPart(pack_part(part, images), StageSeconds(encode=0.25))


def _content(part: EncodedPart) -> bytes:
    return part.packed.content


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "run"))


def test_a_part_that_another_pod_made_first_is_left_as_it_is(
    wanted: tuple[Part, ...], store: Store
) -> None:
    first, second = _encoded(wanted[0], [0, 1, 2, 3]), _encoded(wanted[0], [9, 8, 7, 6])
    committed = list(commit_parts(iter([first, second]), store, NoProgress()))
    assert [each.part for each in committed] == [wanted[0], wanted[0]]
    assert store.read(wanted[0].key) == _content(first)
