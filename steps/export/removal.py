"""Removing images from a complete export: its files are written again without them.

The ids are written down first; then the export is not complete until every file that held one, the
manifest and the card are replaced. The manifest keeps a row of each, with the status `forgotten`.
The plan stays as it was: it has their prompts, and no pixels.
"""

import io
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.export.card import render_export_card
from imagekiln.steps.export.copying import file_columns
from imagekiln.steps.export.layout import manifest_chunk_key, success_marker
from imagekiln.steps.export.manifest import iter_manifest
from imagekiln.steps.export.plan import ExportPlan, load_export_plan, read_file_rows
from imagekiln.steps.runs.forgotten import add_forgotten, read_forgotten_ids
from imagekiln.steps.runs.keys import CARD_KEY, SUCCESS_KEY
from imagekiln.steps.runs.parquet_format import image_table_options
from imagekiln.steps.runs.tables import damage_error, parse_parquet, to_parquet
from imagekiln.steps.runs.turns import TurnStore
from imagekiln.steps.runs.webdataset_format import END_OF_ARCHIVE, iter_members
from imagekiln.steps.storage.store import Store


def remove_from_export(
    store: Store, image_ids: pa.Array, *, remove: bool
) -> tuple[pa.Array, pa.Array]:
    """Those of these ids that an export has, and those of them that are new; removed if asked.

    Called again after it was killed, it does what is left. Raises Missing where there is no export,
    BadInput where it is not complete, TryAgain.
    """
    plan, earlier = require_complete_export(store)
    ids = _find_images(store, plan, image_ids)
    is_new = pc.invert(pc.is_in(ids, earlier))
    new = ids.filter(is_new).unique()
    if not remove or (not len(new) and _is_complete(store, plan)):
        return ids, new
    turn = TurnStore(store)  # no removal that began before writes any more
    if len(new):
        add_forgotten(turn, new)

    with suppress(Missing):
        turn.remove(SUCCESS_KEY)
    forgotten = read_forgotten_ids(turn)  # also those that another removal has written meanwhile
    _replace_files(turn, plan, forgotten)
    _replace_derived(turn, plan, forgotten)
    return ids, new


def count_left(store: Store, plan: ExportPlan) -> tuple[int, int]:
    """The images that a complete export has, and the sum of their bytes."""
    forgotten = read_forgotten_ids(store)
    if not len(forgotten):
        return plan.images, plan.bytes
    counts = map(_count_chunk, iter_manifest(store, plan, forgotten))
    images, sizes = zip(*counts, strict=True)
    return sum(images), sum(sizes)


def _count_chunk(chunk: pa.Table) -> tuple[int, int]:
    """The images of a piece of the manifest that are in a file, and the sum of their bytes."""
    images = chunk["file"].length() - chunk["file"].null_count
    return images, pc.sum(chunk["byte_size"]).as_py() or 0


def require_complete_export(store: Store) -> tuple[ExportPlan, pa.Array]:
    """The plan of an export, and the ids of images that were removed from it before.

    Raises Missing where there is no export, BadInput where it is not complete.
    """
    plan = load_export_plan(store)
    earlier = read_forgotten_ids(store)
    if not store.exists(SUCCESS_KEY) and not len(earlier):
        raise BadInput(
            f"{store.uri}: is not complete, so nothing can be removed from it yet. "
            "Run the command that exports it again first."
        )
    return plan, earlier


def _is_complete(store: Store, plan: ExportPlan) -> bool:
    """Whether a complete export has no image more than removals left."""
    images, _ = count_left(store, plan)
    return store.exists(SUCCESS_KEY) and store.read(SUCCESS_KEY) == success_marker(images)


def _find_images(store: Store, plan: ExportPlan, image_ids: pa.Array) -> pa.Array:
    """The ids of these images in the plan."""
    selected = [pa.array([], pa.string())]
    for number in range(len(plan.files)):
        ids = read_file_rows(store, plan, number)["image_id"].combine_chunks()
        selected.append(ids.filter(pc.is_in(ids, image_ids)))
    return pa.concat_arrays(selected)


def _replace_files(store: TurnStore, plan: ExportPlan, forgotten: pa.Array) -> None:
    removed = frozenset(forgotten.to_pylist())
    for number, file in enumerate(plan.files):
        rows = read_file_rows(store, plan, number)
        if removed.isdisjoint(rows["image_id"].to_pylist()):
            continue
        content = store.read(file.key)
        where = store.uri_of(file.key)
        if plan.settings.format == "parquet":
            rest = _parquet_without(content, where, forgotten)
        else:
            rest = _tar_without(content, where, removed)
        if rest != content:
            store.replace(file.key, rest)


def _parquet_without(content: bytes, where: str, forgotten: pa.Array) -> bytes:
    sink = io.BytesIO()
    with parse_parquet(content, where) as parquet:
        schema = parquet.schema_arrow
        with pq.ParquetWriter(sink, schema, **image_table_options(schema)) as writer:
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group, use_threads=False)
                is_left = pc.invert(pc.is_in(table["image_id"], forgotten))
                rest = table.filter(is_left)
                if rest.num_rows:  # some readers fail at a row group without rows
                    writer.write_table(rest.combine_chunks())
    return sink.getvalue()


def _tar_without(content: bytes, where: str, forgotten: frozenset[str]) -> bytes:
    sink = io.BytesIO()
    try:
        for member in iter_members(content):
            image_id, _, _ = member.name.partition(".")
            if image_id not in forgotten:
                sink.write(content[member.start : member.end])
    except ValueError as error:
        raise damage_error(where, error) from error
    sink.write(END_OF_ARCHIVE)
    return sink.getvalue()


def _replace_derived(store: Store, plan: ExportPlan, forgotten: pa.Array) -> None:
    """Write manifest and card again, and then the success marker."""
    images = 0
    size = 0
    for number, chunk in enumerate(iter_manifest(store, plan, forgotten)):
        store.replace(manifest_chunk_key(number), to_parquet(chunk))
        chunk_images, chunk_size = _count_chunk(chunk)
        images += chunk_images
        size += chunk_size
    rows = read_file_rows(store, plan, 0)
    columns = rows.select(file_columns(plan, rows)).schema
    card = render_export_card(plan, columns, images, size)
    store.replace(CARD_KEY, card.encode(errors="replace"))
    store.replace(SUCCESS_KEY, success_marker(images))
