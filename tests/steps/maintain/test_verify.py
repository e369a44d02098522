"""Reading a whole run back: what verify notices."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import Incomplete, TryAgain
from imagekiln.steps.generate.start import generate
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.retry import retry
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.commits import Commit, digest_of, read_head
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.keys import (
    commit_key,
    duplicates_key,
    manifest_key,
    part_key,
    rejected_key,
)
from imagekiln.steps.runs.parts import Part, part_to_parquet
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.shard import planned_shard_key, read_shard
from imagekiln.steps.runs.tables import read_table, to_parquet
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests.faults import failing, manifests
from tests.interleaving import frozen, interleaving
from tests.jobs import files
from tests.runs import PROMPTS, encoded, fill, finished, not_ok, planned

KEY = part_key(1, 0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A finished run of 20 images: shards of 8, 8 and 4, in parts of 4."""
    return finished(tmp_path / "run")


def _part(store: Store) -> Part:
    return read_shard(store, load_plan(store), 1)[0]


def _set_commit(store: Store, **changes: object) -> None:
    """Change the highest commit as damage or a bug would."""
    key = commit_key(read_head(store).number)
    store.replace(key, json.dumps(json.loads(store.read(key)) | changes).encode())


def test_a_good_run_reads_back_as_planned_and_unchanged(store: Store) -> None:
    before = files(Path(store.uri))
    result = verify(store.uri)
    assert (result.run, result.images, result.ok) == (store.uri, 20, 20)
    assert result.bytes == sum(int(str(row["byte_size"])) for row in manifests(store.uri))
    assert files(Path(store.uri)) == before


def _flip(store: Store, key: str, place: int) -> None:
    content = bytearray(store.read(key))
    content[place] ^= 1
    store.replace(key, bytes(content))


def test_a_flipped_bit_in_an_image_is_found(store: Store) -> None:
    row = manifests(store.uri)[10]
    _flip(store, KEY, int(str(row["byte_offset"])) + int(str(row["byte_size"])) // 2)
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
        (replace(encoded(0), pixels_sha256="0" * 64), "has other pixels than were generated"),
    ],
)
def test_an_image_that_is_not_what_its_hashes_say_is_named(
    image: EncodedImage, sentence: str, store: Store
) -> None:
    _with(store, image)
    name = _part(store).rows["image_id"][0].as_py()
    with pytest.raises(Incomplete, match=f"{KEY}: image {name} {sentence}"):
        verify(store.uri)


def test_lost_and_damaged_parts_are_made_again_by_the_commands_that_are_named(
    tmp_path: Path,
) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), limits={"failed_share": 1})
    for number in range(3):
        with failing(str(PROMPTS[2]["prompt"])):
            generate(run.uri, number)
    aggregate(run.uri)
    retry(run.uri)
    store = open_store(run.uri)
    of_retry = part_key(0, 0, 1)
    for key in (KEY, of_retry):
        store.remove(key)
    _flip(store, part_key(2, 0), 200)
    with pytest.raises(Incomplete) as caught:
        verify(store.uri)
    assert str(caught.value).endswith(
        "first remove those that are damaged, then type: imagekiln generate "
        f"{store.uri}/retry-1 --shard 0 && imagekiln generate {store.uri} --shard 1 "
        f"&& imagekiln generate {store.uri} --shard 2 && imagekiln verify {store.uri}"
    )
    store.remove(part_key(2, 0))
    for uri, number in ((f"{store.uri}/retry-1", 0), (store.uri, 1), (store.uri, 2)):
        assert generate(uri, number) is not None
    assert verify(store.uri).ok == 20


def test_swapped_parts_are_all_listed(store: Store) -> None:
    one, other = store.read(KEY), store.read(part_key(1, 1))
    store.replace(KEY, other)
    store.replace(part_key(1, 1), one)
    with pytest.raises(Incomplete, match="holds other images than were planned") as caught:
        verify(store.uri)
    assert caught.value.exit_code == 3
    assert all(key in str(caught.value) for key in (KEY, part_key(1, 1)))


def _with_column(name: str, values: list[object]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        field = table.schema.field(place)
        return table.set_column(place, field, pa.array(values, field.type))

    return change


@pytest.mark.parametrize(
    "change",
    [
        _with_column("status", ["failed", *["ok"] * 7]),
        _with_column("marks", [["too_dark"], *[[]] * 7]),
        _with_column("part", [None, *[KEY] * 3, *[part_key(1, 1)] * 4]),
    ],
    ids=["another status", "a mark", "an image that it does not name"],
)
def test_a_manifest_that_differs_from_the_parts_is_found(
    change: Callable[[pa.Table], pa.Table], store: Store
) -> None:
    keys = list(read_head(store).commit.manifests)
    content = to_parquet(change(read_table(store, keys[1])))
    keys[1] = manifest_key(1, digest_of(content))
    store.create(keys[1], content)
    _set_commit(store, manifests=keys)
    with pytest.raises(Incomplete, match=f"{KEY}: differs from the manifest"):
        verify(store.uri)


NAMED: dict[str, Callable[[Plan, Commit], str]] = {
    "shard": lambda plan, _: planned_shard_key(plan, 1),
    "rejected": lambda plan, _: rejected_key(plan.rejected),
    "duplicates": lambda plan, _: duplicates_key(plan.duplicates),
    "manifest": lambda _, commit: commit.manifests[1],
    "part": lambda *_: KEY,
}


@pytest.mark.parametrize("key_of", NAMED.values(), ids=NAMED)
def test_objects_that_are_damaged_changed_or_missing_are_found(
    key_of: Callable[[Plan, Commit], str], store: Store
) -> None:
    key = key_of(load_plan(store), read_head(store).commit)
    content = store.read(key)
    for damage in (
        partial(store.replace, key, b"PAR1" + content[4:-20]),
        partial(store.replace, key, to_parquet(pa.table({"row": [0, 1]}))),
        partial(store.remove, key),
    ):
        damage()
        with pytest.raises(Incomplete, match=rf"{key}: .*\n.*Restore these objects"):
            verify(store.uri)


def test_summary_with_other_numbers_is_found(store: Store) -> None:
    summary = read_head(store).commit.summary
    _set_commit(store, summary=summary | {"statuses": {"ok": 19, "failed": 1}})
    where = f"{commit_key(0)}: counts other images than the manifest."
    with pytest.raises(Incomplete, match=re.escape(where)):
        verify(store.uri)


def test_forgotten_images_that_are_there_again_are_found_and_removed_again(
    store: Store,
) -> None:
    content = store.read(KEY)
    take_down = partial(forget, store.uri, ForgetSelection(ids=("row-8",)), remove=True)
    take_down()
    assert verify(store.uri).ok == 19
    for damage in (partial(store.replace, KEY, content), partial(store.remove, KEY)):
        damage()
        with pytest.raises(Incomplete, match=rf"{KEY}: .*\n.*imagekiln forget {store.uri}` with"):
            verify(store.uri)
        take_down()
        assert verify(store.uri).ok == 19
    reduced = f"{KEY.removesuffix('.parquet')}.f1.parquet"
    store.replace(reduced, content)
    with pytest.raises(Incomplete, match="differs from the manifest") as caught:
        verify(store.uri)
    assert "imagekiln generate" not in str(caught.value), "it finds the name of the part taken"


def test_an_unfinished_run_is_incomplete(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"))
    fill(run, {3: not_ok(3)})
    with pytest.raises(Incomplete):
        aggregate(run.uri)
    with pytest.raises(Incomplete, match=r"is not finished\. Run or aggregate it first"):
        verify(run.uri)


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
