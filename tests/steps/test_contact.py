"""The pictures of the contact sheet."""

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from imagekiln.steps import names
from imagekiln.steps.codecs import written
from imagekiln.steps.contact import MOST, SIDE, Sample, Samples, thumbnail
from imagekiln.steps.encode import encode
from imagekiln.steps.encodings import Png
from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.reconcile import Reconciled
from imagekiln.steps.storage import open_store
from tests.runs import encoded, picture
from tests.steps.test_reconcile import Reading


def _shard(number: int, statuses: Sequence[str]) -> Reconciled:
    count = len(statuses)
    manifest = pa.table(
        {
            "status": list(statuses),
            "part": [names.part(number, 0)] * count,
            "offset": list(range(count)),
            "size": [1] * count,
            "prompt": [f"{number}-{place}" for place in range(count)],
            "seed": [0] * count,
            "width": [8] * count,
            "height": [8] * count,
        }
    )
    return Reconciled(manifest, ())


def _chosen(shards: int, statuses: Sequence[str]) -> list[Sample]:
    samples = Samples(shards)
    for number in range(shards):
        samples.add(number, _shard(number, statuses))
    return samples.chosen


@pytest.mark.parametrize("shards", [1, 3, 95, 96, 97, 150, 1000])
def test_a_full_sheet_is_spread_evenly_over_all_shards(shards: int) -> None:
    each = Counter(sample.part for sample in _chosen(shards, ["ok"] * 200))
    assert sum(each.values()) == MOST
    assert max(each.values()) - min(each.values()) <= 1
    numbers = [int(part[7:12]) for part in each]
    gaps = np.diff([-1, *numbers, shards])
    assert max(gaps) <= -(-shards // MOST) + 1


def test_pictures_are_spread_over_their_shard() -> None:
    offsets = [sample.offset for sample in _chosen(48, ["ok"] * 101)][:2]
    assert offsets == [0, 100]


def test_a_small_run_shows_each_image_once() -> None:
    assert [sample.prompt for sample in _chosen(2, ["ok"] * 3)] == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def test_only_images_that_are_ok_are_shown() -> None:
    assert [sample.prompt for sample in _chosen(1, ["failed", "ok", "missing", "blank", "ok"])] == ["0-1", "0-4"]


def test_a_shard_without_any_good_image_shows_none() -> None:
    assert _chosen(2, ["failed"]) == []


@pytest.mark.parametrize(("side", "shown"), [(16, 16), (600, SIDE)])
def test_a_thumbnail_is_a_small_jpeg_of_its_picture(side: int, shown: int, tmp_path: Path) -> None:
    image = encode(picture(1, side), Png())
    assert image.content is not None
    store = open_store(str(tmp_path))
    store.create("part", b"before" + image.content + b"after")
    content = thumbnail(store, Sample("part", 6, len(image.content), "a", 1, side, side))
    with Image.open(io.BytesIO(content)) as small:
        assert (small.format, small.size) == ("JPEG", (shown, shown))
        mean = np.asarray(small).mean((0, 1))
    assert np.abs(mean - np.asarray(picture(1, side).rgb).mean((0, 1))).max() < 4


def test_a_wide_picture_keeps_its_shape(tmp_path: Path) -> None:
    content = written(np.zeros((100, 1000, 3), dtype=np.uint8), Png())
    store = open_store(str(tmp_path))
    store.create("part", content)
    with Image.open(io.BytesIO(thumbnail(store, Sample("part", 0, len(content), "a", 1, 1000, 100)))) as small:
        assert small.size == (SIDE, round(SIDE / 10))


def test_a_thumbnail_reads_its_image_and_nothing_else(tmp_path: Path) -> None:
    content = encoded(1).content or b""
    store = Reading(tmp_path)
    store.create("part", b"x" * 1_000_000 + content + b"x" * 1_000_000)
    thumbnail(store, Sample("part", 1_000_000, len(content), "a", 1, 16, 16))
    assert store.bytes == len(content)


def test_a_damaged_image_names_its_part(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.create("part", b"no image at all")
    with pytest.raises(BadInput, match=r"part: is damaged \(.*\). Restore or delete it"):
        thumbnail(store, Sample("part", 0, 15, "a", 1, 16, 16))


def test_a_part_that_vanished_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="part: no such file"):
        thumbnail(open_store(str(tmp_path)), Sample("part", 0, 15, "a", 1, 16, 16))
