"""An image_id has the same bytes, however a run is cut and whatever its neighbors."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.generate.start import generate
from imagekiln.steps.runs.keys import part_key
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.texts import chance

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
def test_fed_in_another_order(together: Made, tmp_path: Path) -> None:
    order = list(range(len(ROWS)))
    chance(7).shuffle(order)
    assert made(tmp_path, ROWS.take(order), part={"images": 4}) == together


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


def test_alone(together: Made, tmp_path: Path) -> None:
    found = made(tmp_path, ROWS.slice(3, 1))
    assert found == {image_id: together[image_id] for image_id in found}
