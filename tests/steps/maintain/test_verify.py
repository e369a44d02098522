"""Reading a whole run back: what verify notices."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, Missing, TryAgain
from imagekiln.steps.generate.start import generate
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import (
    DUPLICATES_KEY,
    REJECTED_KEY,
    REPORT_KEY,
    SUCCESS_KEY,
    SUMMARY_KEY,
    image_ids_key,
    manifest_key,
    part_key,
    shard_key,
)
from imagekiln.steps.runs.parquet_format import part_to_parquet
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.rounds import Round
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.runs.tables import read_table, to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.interleaving import frozen, interleaving
from tests.runs import (
    PROMPTS,
    begin_round,
    encoded,
    fill,
    finished,
    not_ok,
    planned,
    renumbered,
)

KEY = part_key(1, 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A finished run of 20 images: shards of 8, 8 and 4, in parts of 4."""
    return finished(tmp_path / "run")


def _part(store: Store) -> Part:
    return read_shard(store, load_plan(store), 1)[0]


def test_a_good_run_reads_back_as_planned(store: Store) -> None:
    result = verify(store.uri)
    sizes = [
        pq.read_table(store.uri_of(manifest_key(number)))["byte_size"].to_pylist()
        for number in range(3)
    ]
    assert (result.run, result.images, result.ok) == (store.uri, 20, 20)
    assert result.bytes == sum(sum(each) for each in sizes)


def _flip(store: Store, key: str, place: int) -> None:
    content = bytearray(store.read(key))
    content[place] ^= 1
    store.replace(key, bytes(content))


def test_a_flipped_bit_in_an_image_is_found(store: Store) -> None:
    columns = ["byte_offset", "byte_size"]
    row = pq.read_table(store.uri_of(manifest_key(1)), columns=columns).to_pylist()[2]
    _flip(store, KEY, row["byte_offset"] + row["byte_size"] // 2)
    with pytest.raises(
        Incomplete, match=r"images/00001-0000.parquet: is damaged .*\nRestore these objects"
    ):
        verify(store.uri)


def _with(store: Store, image: EncodedImage) -> None:
    """Write the part anew, as a writer of ours would, with another first image."""
    rows = _part(store).rows
    store.replace(KEY, part_to_parquet(rows, [image, *(encoded(place) for place in (1, 2, 3))]))


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (replace(encoded(0), sha256="0" * 64), "has other bytes than were written"),
        (replace(encoded(0), pixels_sha256="0" * 64), "has other pixels than were drawn"),
    ],
)
def test_an_image_that_is_not_what_its_hashes_say_is_named(
    image: EncodedImage, sentence: str, store: Store
) -> None:
    _with(store, image)
    name = _part(store).rows["image_id"][0].as_py()
    with pytest.raises(Incomplete, match=f"{KEY}: image {name} {sentence}"):
        verify(store.uri)


def test_a_missing_part_is_found(store: Store) -> None:
    store.remove(KEY)
    with pytest.raises(Incomplete, match=r"images/00001-0000.parquet: no such file"):
        verify(store.uri)


def test_commands_that_generate_a_lost_and_a_damaged_part_again_are_named(store: Store) -> None:
    other = part_key(2, 0)
    store.remove(KEY)
    _flip(store, other, 200)
    with pytest.raises(Incomplete) as caught:
        verify(store.uri)
    assert str(caught.value).endswith(
        "Or generate them again: first remove those that are damaged, then type: "
        f"imagekiln generate {store.uri} --shard 1 && imagekiln generate {store.uri} --shard 2 "
        f"&& imagekiln verify {store.uri}"
    )
    store.remove(other)
    for number in (1, 2):
        assert generate(store.uri, number) is not None
    assert verify(store.uri).ok == 20


def test_what_aggregation_writes_is_to_be_aggregated_again(store: Store) -> None:
    store.remove(REPORT_KEY)
    with pytest.raises(Incomplete, match=f"again by: imagekiln aggregate {store.uri}$"):
        verify(store.uri)
    aggregate(store.uri)
    assert verify(store.uri).ok == 20


def test_swapped_parts_are_found(store: Store) -> None:
    one, other = store.read(KEY), store.read(part_key(1, 1))
    store.replace(KEY, other)
    store.replace(part_key(1, 1), one)
    with pytest.raises(Incomplete, match="holds other images than were planned") as caught:
        verify(store.uri)
    assert "00001-0000" in str(caught.value)
    assert "00001-0001" in str(caught.value)


def test_a_part_whose_prompts_are_not_the_plan_s_is_found(store: Store) -> None:
    rows = _part(store).rows
    place = rows.schema.get_field_index("prompt")
    other = rows.set_column(place, rows.schema.field(place), pa.array(["something else"] * 4))
    store.replace(KEY, part_to_parquet(other, [encoded(place) for place in range(4)]))
    with pytest.raises(
        Incomplete, match=r"00001-0000\.parquet: holds other images than were planned"
    ):
        verify(store.uri)


def _status_changed(table: pa.Table) -> pa.Table:
    place = table.schema.get_field_index("status")
    return table.set_column(place, table.schema.field(place), pa.array(["failed", *["ok"] * 7]))


@pytest.mark.parametrize(
    "change",
    [
        _status_changed,
        lambda table: table.slice(1),
    ],
    ids=["another status", "a row less"],
)
def test_a_manifest_that_differs_from_the_parts_is_found(
    change: Callable[[pa.Table], pa.Table], store: Store
) -> None:
    key = manifest_key(1)
    store.replace(key, to_parquet(change(pq.read_table(store.uri_of(key)))))
    with pytest.raises(Incomplete, match=r"manifest/00001.parquet: differs from the parts"):
        verify(store.uri)


@pytest.mark.parametrize("key", [manifest_key(1), shard_key(1), KEY])
def test_a_damaged_object_is_found(key: str, store: Store) -> None:
    store.replace(key, b"PAR1" + store.read(key)[4:-20])
    with pytest.raises(Incomplete, match=rf"{key}: is (damaged \([^()]+\)|not what was planned)\."):
        verify(store.uri)


def test_a_shard_of_other_rows_is_found(store: Store) -> None:
    key = shard_key(1)
    rows = read_table(store, key)
    place = rows.schema.get_field_index("seed")
    seeds = pa.array(rows["seed"].to_pylist()[::-1], rows.schema.field(place).type)
    store.replace(key, to_parquet(rows.set_column(place, rows.schema.field(place), seeds)))
    with pytest.raises(Incomplete, match=key):
        verify(store.uri)


@pytest.mark.parametrize("key", [SUMMARY_KEY, REPORT_KEY])
def test_a_finished_run_has_its_lists_its_summary_and_its_report(key: str, store: Store) -> None:
    content = store.read(key)
    store.replace(key, content[: len(content) // 2])
    with pytest.raises(Incomplete, match=f"{key}: "):
        verify(store.uri)
    store.remove(key)
    with pytest.raises(Incomplete, match=f"{key}: no such file"):
        verify(store.uri)


@pytest.mark.parametrize("key", [REJECTED_KEY, DUPLICATES_KEY])
def test_a_rejected_or_duplicates_list_of_another_plan_is_detected(key: str, store: Store) -> None:
    store.replace(key, to_parquet(pa.table({"row": [0, 1]})))
    with pytest.raises(Incomplete, match=f"{key}: has 2 rows and not 0, as planned"):
        verify(store.uri)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": 21}, "is of another plan (images)"),
        (
            {"missing_parts_count": 1, "permanent_failures": 1},
            "counts other images than the manifest (missing_parts_count, permanent_failures)",
        ),
    ],
    ids=str,
)
def test_summary_with_other_numbers_is_found(
    changes: dict[str, object], sentence: str, store: Store
) -> None:
    summary = json.loads(store.read(SUMMARY_KEY))
    store.replace(SUMMARY_KEY, json.dumps(summary | changes).encode())
    with pytest.raises(Incomplete, match=re.escape(f"{SUMMARY_KEY}: {sentence}.")):
        verify(store.uri)


def test_index_of_other_images_is_found(store: Store) -> None:
    key = image_ids_key(0)
    table = read_table(store, key)
    others = [*table["image_id"].to_pylist()[:-1], b"\xff" * 16]
    ids = pa.array(others, table.schema.field("image_id").type)
    store.replace(key, to_parquet(pa.Table.from_arrays([ids], schema=table.schema)))
    with pytest.raises(Incomplete, match=f"{key}: names other images than the manifest"):
        verify(store.uri)
    aggregate(store.uri)
    assert verify(store.uri).ok == 20


def _retried(tmp_path: Path) -> Round:
    """The finished round of a finished run: it made one image of the second shard again."""
    run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 0.1})
    fill(run, {9: not_ok(9)})
    aggregate(run.uri)
    retry_round = begin_round(run)
    assert verify(run.uri).ok == 19  # a round that is begun changes nothing
    (part,) = read_shard(retry_round.store, retry_round.plan, 0)
    format_of(run.plan.job).pack(part, [encoded(0)]).commit(retry_round.store)
    assert aggregate(run.uri).ok == 20
    assert verify(run.uri).ok == 20
    return retry_round


def _round_of_lost_parts(run: PlanResult) -> Round:
    """A round of two parts, each of which has the images of a part that the run has lost."""
    fill(run)
    store = open_store(run.uri)
    store.remove(part_key(1, 0))
    store.remove(part_key(1, 1))
    with pytest.raises(Incomplete):
        aggregate(run.uri)
    return begin_round(run)


def _make(planned_run: Round, number: int, place: int) -> str:
    """Make a part of a shard. Returns its key."""
    part = read_shard(planned_run.store, planned_run.plan, number)[place]
    images = renumbered([encoded(image) for image in range(part.rows.num_rows)])
    format_of(planned_run.plan.job).pack(part, images).commit(planned_run.store)
    return part.key


def test_damaged_part_of_a_round_is_to_be_generated_again_in_it_alone(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"))
    retry_round = _round_of_lost_parts(run)
    _make(retry_round, 0, 1)
    key = _make(retry_round, 0, 0)
    aggregate(run.uri)
    retry_round.store.replace(key, retry_round.store.read(key)[:-1])
    with pytest.raises(Incomplete) as caught:
        verify(run.uri)
    commands = f"imagekiln generate {retry_round.store.uri} --shard 0 && imagekiln verify {run.uri}"
    assert str(caught.value).endswith(f"then type: {commands}")


def test_a_flipped_bit_in_an_image_of_a_round_is_found(tmp_path: Path) -> None:
    retry_round = _retried(tmp_path)
    content = encoded(0).content
    assert content is not None
    place = retry_round.store.read(part_key(0, 0)).index(content) + len(content) // 2
    _flip(retry_round.store, part_key(0, 0), place)
    with pytest.raises(Incomplete, match=r"retry-1/images/00000-0000\.parquet: is damaged"):
        verify(retry_round.store.uri)


def test_everything_that_is_wrong_is_listed_not_only_the_first(store: Store) -> None:
    store.remove(manifest_key(0))
    store.remove(KEY)
    _flip(store, part_key(2, 0), 200)
    with pytest.raises(Incomplete) as caught:
        verify(store.uri)
    for key in (manifest_key(0), KEY, part_key(2, 0)):
        assert key in str(caught.value)
    assert caught.value.exit_code == 3


def test_an_unfinished_run_is_incomplete(store: Store) -> None:
    store.remove(SUCCESS_KEY)
    with pytest.raises(
        Incomplete, match=r"has no _SUCCESS, so it is not finished\. Run or aggregate it first"
    ):
        verify(store.uri)


def test_where_no_run_is_there_is_nothing_to_verify(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="holds no plan"):
        verify(str(tmp_path / "nowhere"))


def test_run_that_is_changed_while_it_is_read_is_not_called_damaged(
    store: Store, tmp_path: Path
) -> None:
    take_down = partial(forget, store.uri, ForgetSelection(ids=("row-1",)), remove=True)
    with interleaving(tmp_path, lambda *_: None):
        reader = frozen(partial(verify, store.uri), "read", part_key(0, 0))
        take_down()
        reader.finish()
    assert isinstance(reader.error, TryAgain)
    assert verify(store.uri).ok == len(PROMPTS) - 1


def test_verify_changes_nothing(store: Store) -> None:
    def everything() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in Path(store.uri).rglob("*")}

    before = everything()
    verify(open_store(store.uri).uri)
    assert everything() == before
