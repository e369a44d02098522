"""The comparison of two checkouts: what it calls a difference, and what it lets pass."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq

from tests.compare import IGNORED, differences, read_values

PLAN = {"run_id": "demo", "counts": {"images": 2, "rejected_rows": 0}, "seconds": 1.5}


def table(ids: list[str], compression: str = "zstd") -> dict[str, object]:
    """The values of a table of images."""
    file = io.BytesIO()
    pq.write_table(pa.table({"image_id": ids}), file, compression=compression)
    return read_values("run/shards/00000.parquet", file.getvalue(), IGNORED)


def plan(*ignored: str, **changes: object) -> dict[str, object]:
    """The values of a plan."""
    content = json.dumps({**PLAN, **changes}).encode()
    return read_values("run/plan.json", content, (*IGNORED, *ignored))


def test_time_and_bytes_of_equal_content_are_no_difference() -> None:
    assert not differences(plan(), plan(seconds=20.0))
    assert not differences(table(["a", "b"]), table(["a", "b"], "none"))


def test_each_value_that_differs_is_named() -> None:
    assert differences(table(["a", "b"]), table(["a", "c"])) == [
        "run/shards/00000.parquet.rows[1].image_id\n    before: 'b'\n    after:  'c'"
    ]
    assert len(differences(plan(), {})) == 3


def test_a_key_can_be_ignored() -> None:
    changed = {"counts": {"images": 2, "rejected_rows": 1}}
    assert differences(plan(), plan(**changed))
    assert not differences(plan("rejected_rows"), plan("rejected_rows", **changed))
