"""The pictures of the report: a random sample, and some of each gate."""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from imagekiln.steps.aggregate.image_table import read_rows
from imagekiln.steps.aggregate.report.page import THUMBNAIL_SIDE
from imagekiln.steps.aggregate.report.pictures import (
    MAX_SAMPLES,
    MAX_SAMPLES_PER_GATE,
    pick_pictures,
)
from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.job.output import Png
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import part_key, thumbnail_key
from imagekiln.steps.storage import open_store
from tests.runs import PROMPTS, fill, picture, planned
from tests.steps.aggregate.tables import image_table, manifest


@pytest.fixture
def run(tmp_path: Path) -> PlanResult:
    """A planned run: shards of 8, 8 and 4 images."""
    return planned(tmp_path, str(tmp_path / "out"))


def _ids(images: int) -> list[str]:
    return [hashlib.sha256(str(place).encode()).hexdigest()[:32] for place in range(images)]


def test_a_sample_is_from_all_over_the_run_and_in_its_order(run: PlanResult) -> None:
    ids = _ids(20_000)
    shards = [manifest(10_000, image_id=ids[:10_000]), manifest(10_000, image_id=ids[10_000:])]
    with image_table(run.plan.job, *shards) as table:
        numbers = pick_pictures(table, run.plan).sample
    assert numbers == sorted(numbers)
    assert len(numbers) == MAX_SAMPLES
    quarters = Counter(number // 5000 for number in numbers)
    assert all(12 <= quarters[quarter] <= 36 for quarter in range(4))  # 24 on average


def test_only_images_that_are_ok_are_shown_and_some_of_each_gate(run: PlanResult) -> None:
    statuses = ["ok", "filtered"] * 50
    shards = [
        manifest(100, status=statuses, marks=[["low_contrast"]] * 100),
        manifest(2, marks=[["over_saturated", "low_contrast"]] * 2),
    ]
    with image_table(run.plan.job, *shards) as table:
        numbers = pick_pictures(table, run.plan)
    assert numbers.sample == [*range(0, 100, 2), 100, 101]
    assert len(numbers.by_gate["low_contrast"]) == MAX_SAMPLES_PER_GATE
    assert numbers.by_gate["over_saturated"] == [100, 101]


def test_rows_are_read_from_their_shards_alone(run: PlanResult) -> None:
    read = []

    def read_manifest(shard: int) -> object:
        read.append(shard)
        return manifest(run.plan.shards[shard].images)

    rows = read_rows(run.plan, [19, 2, 17], read_manifest)
    assert {number: row["input_row"] for number, row in rows.items()} == {2: 2, 17: 1, 19: 3}
    assert sorted(read) == [0, 2]


@pytest.mark.parametrize(("side", "expected_side"), [(16, 16), (600, THUMBNAIL_SIDE)])
def test_a_thumbnail_is_a_small_jpeg_of_its_picture(
    side: int, expected_side: int, tmp_path: Path
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), PROMPTS[:1])
    fill(run, {0: encode_drawn_image(picture(1, side), Png())})
    aggregate(run.uri)
    with Image.open(f"{run.uri}/{thumbnail_key(0)}") as small:
        assert (small.format, small.size) == ("JPEG", (expected_side, expected_side))
        mean = np.asarray(small).mean((0, 1))
    assert np.abs(mean - np.asarray(picture(1, side).rgb).mean((0, 1))).max() < 4


def test_a_damaged_image_names_its_part(run: PlanResult) -> None:
    fill(run)
    store = open_store(run.uri)
    content = bytearray(store.read(part_key(0, 0)))
    place = content.index(b"IDAT")
    content[place : place + 4] = b"TADI"
    store.replace(part_key(0, 0), bytes(content))
    with pytest.raises(BadInput, match=r"00000-0000.parquet: has other bytes than were written"):
        aggregate(run.uri)
