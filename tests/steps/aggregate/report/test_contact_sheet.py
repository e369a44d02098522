"""The pictures of the contact sheet."""

import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from imagekiln.steps.aggregate.reconcile import ReconciledShard
from imagekiln.steps.aggregate.report.contact_sheet import (
    MAX_SAMPLES,
    MAX_SAMPLES_PER_GATE,
    THUMBNAIL_SIDE,
    ContactSheet,
    Sample,
    read_sample,
    render_thumbnail,
)
from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.encoder import encode_drawn_image
from imagekiln.steps.job.output import Png
from imagekiln.steps.runs.image import CAPTION_SETTINGS
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.storage import open_store
from tests.runs import picture


def _name(number: int, place: int) -> str:
    return hashlib.sha256(f"{number}-{place}".encode()).hexdigest()[:32]


def _shard(
    number: int, statuses: Sequence[str], width: int = 8, marks: Sequence[str] = ()
) -> ReconciledShard:
    places = range(len(statuses))
    manifest = pa.table(
        {
            "image_id": [_name(number, place) for place in places],
            "id": pa.nulls(len(statuses), pa.string()),
            "input_row": list(places),
            "status": list(statuses),
            "part": [part_key(number, 0)] * len(statuses),
            "byte_offset": list(places),
            "byte_size": [1] * len(statuses),
            "sha256": pa.nulls(len(statuses), pa.string()),
            "prompt": [f"{number}-{place}" for place in places],
            **{name: [0] * len(statuses) for name in CAPTION_SETTINGS},
            "width": pa.array([width] * len(statuses), pa.int64()),
            "height": pa.array([8] * len(statuses), pa.int64()),
            "marks": pa.array([list(marks)] * len(statuses), pa.list_(pa.string())),
            "marks_reason": pa.nulls(len(statuses), pa.string()),
            "contrast": pa.array([0.5] * len(statuses), pa.float32()),
            "saturation": pa.array([0.25] * len(statuses), pa.float32()),
            "near_duplicate_of": pa.nulls(len(statuses), pa.string()),
        }
    )
    return ReconciledShard(manifest, ())


def _chosen(*shards: ReconciledShard) -> list[Sample]:
    samples = ContactSheet()
    for each in shards:
        samples.add(each)
    return samples.samples


def test_a_sheet_is_filled_from_all_over_the_run() -> None:
    shards = [_shard(number, ["ok"] * 20) for number in range(1000)]
    numbers = [int(sample.part[7:12]) for sample in _chosen(*shards)]
    assert len(numbers) == MAX_SAMPLES
    quarters = Counter(number // 250 for number in numbers)
    assert all(12 <= quarters[quarter] <= 36 for quarter in range(4))  # 24 on average


def test_the_order_of_shards_does_not_matter_and_samples_are_in_the_order_of_the_run() -> None:
    shards = [_shard(number, ["ok"] * 50) for number in range(10)]
    chosen = _chosen(*shards)
    assert chosen == _chosen(*reversed(shards))
    assert chosen == sorted(chosen, key=lambda sample: (sample.part, sample.byte_offset))


def test_only_images_that_are_ok_are_shown() -> None:
    shown = _chosen(_shard(0, ["failed", "ok", "missing", "filtered", "ok"]))
    assert [sample.prompt for sample in shown] == ["0-1", "0-4"]


def test_each_gate_has_a_random_sample_of_the_ok_images_that_it_marked() -> None:
    samples = ContactSheet(["dull", "loud", "quiet"])
    samples.add(_shard(0, ["ok", "filtered"] * 50, marks=["dull"]))
    samples.add(_shard(1, ["ok"] * 2, marks=["loud", "dull"]))
    result = samples.samples_by_gate
    assert {gate: len(each) for gate, each in result.items()} == {
        "dull": MAX_SAMPLES_PER_GATE,
        "loud": 2,
    }
    good = sorted(
        [_name(0, place) for place in range(0, 100, 2)] + [_name(1, place) for place in range(2)]
    )
    assert [each.image_id for each in result["dull"]] == good[:MAX_SAMPLES_PER_GATE]


def test_marks_set_after_all_shards_are_on_the_sheet_too() -> None:
    samples = ContactSheet(["near"])
    shard = _shard(0, ["ok"] * 4)
    samples.add(shard)
    samples.add_marked("near", _shard(0, ["ok"] * 4, marks=["near"]).manifest.slice(1, 1))
    assert [each.marks for each in samples.samples] == [(), ("near",), (), ()]
    assert [each.image_id for each in samples.samples_by_gate["near"]] == [_name(0, 1)]


def _sample(content: bytes, width: int = 16, height: int = 16, byte_offset: int = 0) -> Sample:
    sample = Sample("0" * 32, None, 0, "part", byte_offset, len(content), "a", width, height)
    return replace(sample, sha256=hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize(("side", "expected_side"), [(16, 16), (600, THUMBNAIL_SIDE)])
def test_a_thumbnail_is_a_small_jpeg_of_its_picture(
    side: int, expected_side: int, tmp_path: Path
) -> None:
    image = encode_drawn_image(picture(1, side), Png())
    assert image.content is not None
    store = open_store(str(tmp_path))
    store.create("part", b"before" + image.content + b"after")
    sample = _sample(image.content, side, side, byte_offset=6)
    content = read_sample(store, sample)
    assert content == image.content
    with Image.open(io.BytesIO(render_thumbnail(store, sample, content))) as small:
        assert (small.format, small.size) == ("JPEG", (expected_side, expected_side))
        mean = np.asarray(small).mean((0, 1))
    assert np.abs(mean - np.asarray(picture(1, side).rgb).mean((0, 1))).max() < 4


def test_a_damaged_image_names_its_part(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with pytest.raises(BadInput, match=r"part: is damaged \(.*\). Restore or delete it"):
        render_thumbnail(store, _sample(b"no image at all"), b"no image at all")
