"""The three stages of a shard, each without threads of its own or a model: draw, encode, write."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.generate.diffusion.transfer import PendingBatch
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.generate.recovery import BatchRecovery
from imagekiln.steps.generate.stages import DrawnBatch, commit_parts, draw_parts, encode_parts
from imagekiln.steps.job.output import Png
from imagekiln.steps.runs.image import DrawnImage, EncodedImage, ImageRow, image_rows
from imagekiln.steps.runs.parquet_format import PackedParquet, ParquetFormat, part_to_parquet
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import COMMIT_RESERVE_SECONDS, GRACE_SECONDS, Stop, Stopped
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.runs import PROMPTS, picture, planned
from tests.threads import threads


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
    """Draws noise, taking a while; `then` is called after each batch."""

    def __init__(self, seconds: float = 0.0, then: Callable[[], None] = lambda: None) -> None:
        self.batches: list[list[int]] = []
        self._seconds, self._then = seconds, then

    def __call__(self, rows: Sequence[ImageRow], size: int) -> list[DrawnImage]:
        assert len(rows) <= size
        time.sleep(self._seconds)
        self.batches.append([row.index_in_part for row in rows])
        self._then()
        return [picture(row.index_in_part) for row in rows]


def _draw(
    wanted: Sequence[Part], model: Model, stop: Stop | None = None, size: int = 2
) -> Iterator[DrawnBatch]:
    return draw_parts(wanted, BatchRecovery(model, lambda _: size), stop or Stop())


def _encode(picture: DrawnImage, row: ImageRow) -> EncodedImage:
    assert picture.index_in_part == row.index_in_part
    return encode_drawn_image(picture, Png())


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


class Over:
    """An event that has come."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class Pending:
    """Begins batches and returns: as on CUDA, one is over only once the next one is begun, a moment later."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._before = seconds, False

    def __call__(self, rows: Sequence[ImageRow], size: int) -> Sequence[DrawnImage]:  # noqa: ARG002
        time.sleep(self._seconds * self._before)
        self._before = True
        return PendingBatch(len(rows), Over(), lambda: [picture(row.index_in_part) for row in rows])


def test_pictures_that_are_still_being_drawn_are_not_waited_for(wanted: tuple[Part, ...]) -> None:
    first, second = list(draw_parts(wanted[:1], BatchRecovery(Pending(0.1), lambda _: 2), Stop()))
    assert [len(each.images) for each in (first, second)] == [2, 2]
    assert [row.index_in_part for row in second.rows] == [2, 3]


@pytest.mark.parametrize(("spare", "finished"), [(0.0, False), (1.0, True)])
def test_the_time_that_a_part_needs_counts_what_is_still_being_drawn(
    wanted: tuple[Part, ...], spare: float, finished: bool
) -> None:
    stop = Stop()
    drawn = draw_parts(wanted[:1], BatchRecovery(Pending(0.2), lambda _: 1), stop)
    next(drawn)
    next(drawn)  # one image took 0.2 s, one is pending, two are left: 0.6 s
    stop.requested_at = time.monotonic() - GRACE_SECONDS + COMMIT_RESERVE_SECONDS + 0.5 + spare
    if finished:
        assert len(list(drawn)) == 2
    else:
        with pytest.raises(Stopped):
            next(drawn)


def test_who_encodes_texts_is_told_of_each_row_once_a_batch_before_it_is_drawn(
    wanted: tuple[Part, ...],
) -> None:
    batches: list[list[int]] = []
    seeds = [row.parameters.seed for part in wanted for row in image_rows(part.rows)]

    def expect(coming: Sequence[ImageRow]) -> None:
        batches.append([row.parameters.seed for row in coming])

    list(draw_parts(wanted, BatchRecovery(Model(), lambda _: 2), Stop(), expect))
    assert len(seeds) == 14
    assert [seed for batch in batches for seed in batch] == seeds[2:]
    assert batches[0] == seeds[2:4]
    assert batches[1] == seeds[4:6], "the next part's"


def test_waiting_for_the_device_is_not_encoding(wanted: tuple[Part, ...]) -> None:
    class Late:
        def synchronize(self) -> None:
            time.sleep(0.2)

    rows = image_rows(wanted[0].rows)
    drawing = PendingBatch(4, Late(), lambda: [picture(row.index_in_part) for row in rows])
    seconds = StageSeconds()
    list(
        encode_parts(
            iter([DrawnBatch(wanted[0], drawing, rows)]),
            _encode,
            ParquetFormat(Png()),
            NoProgress(),
            seconds,
        )
    )
    assert seconds.encode_waits >= 0.2
    assert seconds.encode < 0.2


def test_a_part_at_hand_is_dropped_where_the_time_does_not_suffice(
    wanted: tuple[Part, ...],
) -> None:
    stop = Stop()

    def asked_long_ago() -> None:
        stop.requested_at = time.monotonic() - GRACE_SECONDS + COMMIT_RESERVE_SECONDS + 0.2

    drawn = _draw(wanted, Model(0.1, asked_long_ago), stop, size=1)
    next(drawn)  # 3 images at 0.1 s are left, and 0.2 s
    with pytest.raises(Stopped):
        next(drawn)


def test_pictures_become_the_bytes_of_their_parts(wanted: tuple[Part, ...]) -> None:
    told = Told()
    found = list(
        encode_parts(_draw(wanted, Model()), _encode, ParquetFormat(Png()), told, StageSeconds())
    )
    assert [each.part.key for each in found] == [part.key for part in wanted]
    assert sum(told.images) == 14
    assert told.parts == [], "what is not committed is not kept"
    for each in found:
        count = each.part.rows.num_rows
        same = [encode_drawn_image(picture(place), Png()) for place in range(count)]
        assert each == PackedParquet(each.part, part_to_parquet(each.part.rows, same))


class Told(NoProgress):
    """Remembers the batches and the parts it was told of."""

    def __init__(self) -> None:
        self.images: list[int] = []
        self.parts: list[int] = []

    def made(self, images: int) -> None:
        self.images.append(images)

    def kept(self, images: int) -> None:
        self.parts.append(images)


def test_a_part_that_was_dropped_is_never_put_together(wanted: tuple[Part, ...]) -> None:
    def broken() -> Iterator[DrawnBatch]:
        yield from _draw(wanted[:1], Model())
        yield next(_draw(wanted[1:], Model()))
        raise Stopped

    finished = encode_parts(broken(), _encode, ParquetFormat(Png()), NoProgress(), StageSeconds())
    assert next(finished).part is wanted[0]
    with pytest.raises(Stopped):
        next(finished)


def test_encoders_are_gone_when_the_consumer_leaves(wanted: tuple[Part, ...]) -> None:
    before = threads()
    with closing(
        encode_parts(
            _draw(wanted, Model()), _encode, ParquetFormat(Png()), NoProgress(), StageSeconds()
        )
    ) as finished:  # type: ignore[type-var]  # a generator
        next(finished)
    assert not threads() - before


def _finished(part: Part, places: Sequence[int]) -> PackedParquet:
    images = [
        encode_drawn_image(DrawnImage(place, picture(noise).rgb), Png())
        for place, noise in enumerate(places)
    ]
    return PackedParquet(part, part_to_parquet(part.rows, images))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "run"))


def test_a_part_is_yielded_once_it_is_there(wanted: tuple[Part, ...], store: Store) -> None:
    finished = [_finished(part, range(part.rows.num_rows)) for part in wanted]
    told = Told()
    for place, part in enumerate(commit_parts(iter(finished), store, told, StageSeconds())):
        assert told.parts == [4, 4, 4, 2][: place + 1]
        assert part is wanted[place]
        assert store.read(part.key) == finished[place].content
        assert not any(store.exists(later.key) for later in wanted[place + 1 :])


def test_a_part_that_another_pod_made_first_is_left_as_it_is(
    wanted: tuple[Part, ...], store: Store
) -> None:
    first, second = _finished(wanted[0], [0, 1, 2, 3]), _finished(wanted[0], [9, 8, 7, 6])
    assert list(commit_parts(iter([first, second]), store, NoProgress(), StageSeconds())) == [
        wanted[0],
        wanted[0],
    ]
    assert store.read(wanted[0].key) == first.content


def test_rows_of_parts_are_those_of_the_shard(wanted: tuple[Part, ...]) -> None:
    assert [part.rows.num_rows for part in wanted] == [4, 4, 4, 2]
    assert len(set(pa.concat_tables([part.rows for part in wanted])["image_id"].to_pylist())) == 14
