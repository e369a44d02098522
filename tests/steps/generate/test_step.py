"""One shard, from its plan to its parts, with a real model."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.generate.diffusion.denoiser import Denoiser
from imagekiln.steps.generate.meter import meter_attempt
from imagekiln.steps.generate.start import generate
from imagekiln.steps.generate.step import generate_shard
from imagekiln.steps.imaging.codecs import decode_image
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import DrawnImage, ImageRow, image_rows
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.runs.parts import read_outcomes
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import LocalStore
from tests import jobs, models
from tests.runs import DRAWABLE, PROMPTS, UNDRAWABLE, fill, planned, stats_of
from tests.threads import lasting_threads, threads

KEYS = [part_key(0, number) for number in range(3)]


@pytest.fixture
def there(tmp_path: Path) -> PlanResult:
    """A planned run of one shard with parts of 4, 4 and 2 images."""
    return planned(tmp_path, str(tmp_path / "out"), PROMPTS[:10], shard={"images": 100})


def test_every_part_of_the_shard_is_made_with_the_pixels_that_the_model_draws(
    there: PlanResult,
) -> None:
    done = generate(there.uri, 0)
    assert done is not None
    assert (
        done.shard,
        done.images,
        done.parts,
        done.attempts,
        done.max_batch_size,
        done.device,
    ) == (
        0,
        10,
        3,
        1,
        4,
        "cpu",
    )
    store, denoiser = open_store(there.uri), Denoiser(models.pipe("sd"))
    for part in read_shard(store, there.plan, 0):
        table = pq.read_table(store.uri_of(part.key))
        wanted = denoiser.draw(image_rows(part.rows), 4, lambda: None)
        assert table["status"].to_pylist() == ["ok"] * part.rows.num_rows
        for image, drawn in zip(table["image"].to_pylist(), wanted, strict=True):
            assert np.array_equal(decode_image(image["bytes"]), drawn.rgb)  # type: ignore[arg-type]  # there, as it is ok


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("gone", [[0], [1], [2], [0, 2], [0, 1, 2]], ids=str)
def test_only_missing_parts_are_made_wherever_the_gaps_are(
    gone: list[int], there: PlanResult
) -> None:
    generate(there.uri, 0)
    store = open_store(there.uri)
    first = {key: (store.read(key), Path(store.uri_of(key)).stat().st_mtime_ns) for key in KEYS}
    for number in gone:
        store.remove(KEYS[number])
    done = generate(there.uri, 0)
    assert done is not None
    assert done.parts == len(gone)
    for number, key in enumerate(KEYS):
        content, written_at = first[key]
        assert store.read(key) == content
        assert (Path(store.uri_of(key)).stat().st_mtime_ns == written_at) == (number not in gone)


def test_a_part_that_is_damaged_or_of_another_plan_is_never_taken_for_done(
    there: PlanResult,
) -> None:
    fill(there)
    store = open_store(there.uri)
    store.replace(KEYS[1], store.read(KEYS[0]))
    with pytest.raises(BadInput, match=r"00000-0001.parquet: holds the images of another plan"):
        generate(there.uri, 0)
    store.replace(KEYS[1], b"PAR1")
    with pytest.raises(BadInput, match=r"00000-0001.parquet: is damaged"):
        generate(there.uri, 0)


def test_a_prompt_that_the_pipeline_refuses_is_a_failed_image_among_good_ones(
    tmp_path: Path,
) -> None:
    rows: list[dict[str, object]] = [{**row, **DRAWABLE} for row in PROMPTS[:4]]
    rows[1].update(UNDRAWABLE)
    there = planned(tmp_path, str(tmp_path / "out"), rows)
    generate(there.uri, 0)
    found = read_outcomes(open_store(there.uri), KEYS[0], ["status", "error"]).table
    assert sorted(found["status"].to_pylist()) == ["failed", "ok", "ok", "ok"]
    assert sorted(pq.read_table(there.uri + f"/{KEYS[0]}")["id"].to_pylist()) == [
        "row-0",
        "row-2",
        "row-3",
    ]
    [error] = found["error"].drop_null().to_pylist()
    assert error.startswith("ValueError: The combination of `original_steps x strength`")


class Counting(NoProgress):
    """Calls `then` when so many images are made."""

    def __init__(self, images: int, then: Callable[[], None]) -> None:
        self._left, self._then = images, then

    def add_drawn(self, images: int) -> None:
        self._left -= images
        if self._left == 0:
            self._then()


def test_a_shard_that_was_stopped_keeps_its_parts_and_resumes_at_the_first_missing_one(
    there: PlanResult,
) -> None:
    stop, store = Stop(), open_store(there.uri)
    slow = Slow(models.pipe("sd"))
    with (
        pytest.raises(TryAgain, match=r"shard 0 was stopped with \d parts? left\. Run the same"),
        meter_attempt(
            open_run(there.uri), there.plan, Counting(4, stop.request), stop, shards=[0]
        ) as meter,
    ):
        generate_shard(
            store, there.plan, 0, lambda: slow, meter.progress, stop, record=meter.add_stats
        )
    made = [store.exists(key) for key in KEYS]
    assert made[0]
    assert not made[2]
    first = store.read(KEYS[0])
    generate(there.uri, 0)
    told = stats_of(store.uri, 0)
    assert told is not None
    assert (told.attempts, told.images, told.parts) == (2, 10, 3)
    assert store.read(KEYS[0]) == first
    assert all(store.exists(key) for key in KEYS)


class Slow(Denoiser):
    """Takes a while for a batch, so that what follows keeps up."""

    def draw(
        self, rows: Sequence[ImageRow], size: int, check: Callable[[], None]
    ) -> Sequence[DrawnImage]:
        threading.Event().wait(0.3)
        return super().draw(rows, size, check)


class Full(LocalStore):
    """A disk that has room for one part and no more."""

    def create(self, key: str, data: bytes) -> bool:
        if key != KEYS[0]:
            raise TryAgain(f"{key}: the disk is full.")
        return super().create(key, data)


def test_a_write_that_fails_ends_the_shard_and_leaves_no_thread_behind(there: PlanResult) -> None:
    before, store = threads(), Full(Path(there.uri))
    with (
        pytest.raises(TryAgain, match=r"00000-0001.parquet: the disk is full") as caught,
        closing(Denoiser(models.pipe("sd"))) as denoiser,
    ):
        generate_shard(store, there.plan, 0, lambda: denoiser, NoProgress(), Stop())
    assert caught.tb is not None  # while it is held, so are the frames of all stages
    assert not lasting_threads(before)
    assert [store.exists(key) for key in KEYS] == [True, False, False]


pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # diffusers' schedulers
ROWS = pa.Table.from_pylist(
    [
        {
            "prompt": f"a {colour} {form}",
            "width": 64 if place % 2 else 32,
            "sampler": "euler_a"
            if place % 2
            else None,  # the one draws noise on the way, the other does not
            "images": 2 if place == 3 else 1,
            "seed": 1000 if place % 4 == 0 else None,
        }
        for place, (colour, form) in enumerate(
            product(("red", "blue", "green"), ("circle", "square", "star"))
        )
    ]
)
SETTINGS = {
    "defaults": {"steps": 2},
    "batch": {"images": 2},
}  # a batch of another shape may round otherwise
Made = Mapping[str, str]


def made(folder: Path, rows: pa.Table, **cut: object) -> Made:
    """Make these rows; the hash of each image's file by its id."""
    planned = jobs.plan(folder, rows, **SETTINGS, device="cpu", **cut)
    for number in range(len(planned.plan.shards)):
        generate(planned.uri, number)
    store, found = open_store(planned.uri), dict[str, str]()
    for number in range(len(planned.plan.shards)):
        for part in range(planned.plan.part_count(number)):
            table = pq.read_table(
                store.uri_of(part_key(number, part)), columns=["image_id", "error", "sha256"]
            )
            assert set(table["error"].to_pylist()) == {None}
            found.update(
                zip(table["image_id"].to_pylist(), table["sha256"].to_pylist(), strict=True)
            )
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """All rows in one shard and one part."""
    return made(tmp_path_factory.mktemp("together"), ROWS)


def test_cut_into_other_shards_and_parts(together: Made, tmp_path: Path) -> None:
    assert made(tmp_path, ROWS, part={"images": 2}, shard={"images": 4}) == together


@pytest.mark.slow
def test_among_other_rows(together: Made, tmp_path: Path) -> None:
    others = ROWS.set_column(
        0, "prompt", pa.array([f"{prompt} on a table" for prompt in ROWS["prompt"].to_pylist()])
    )
    mixed = pa.concat_tables([others, ROWS]).take(
        [place * 5 % (2 * len(ROWS)) for place in range(2 * len(ROWS))]
    )
    found = made(tmp_path, mixed)
    assert len(found) == 2 * len(together)
    assert {image_id: found[image_id] for image_id in together} == together
