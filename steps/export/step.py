"""The images of a run, or of all runs of an output, copied into files of a wanted size.

The plan is frozen first, then its files are written in order, each once and whole, then the
manifest, the card, and the success marker last. Nothing is listed or renamed: what is there is not
written again, so that a killed export resumes, and several at once do no harm.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.dataset.dataset import Dataset, open_dataset
from imagekiln.steps.dataset.newest_images import find_replaced_images
from imagekiln.steps.errors import BadInput, Incomplete
from imagekiln.steps.export.card import render_export_card
from imagekiln.steps.export.copying import RUN_READERS, ExportSource, file_columns, make_file
from imagekiln.steps.export.cutting import write_partition
from imagekiln.steps.export.layout import manifest_chunk_key, success_marker
from imagekiln.steps.export.manifest import iter_manifest
from imagekiln.steps.export.plan import (
    EXPORT_VERSION,
    ExportedRun,
    ExportFile,
    ExportPlan,
    find_export_plan,
    freeze_export_plan,
    read_file_rows,
    require_settings,
    write_export_plan,
)
from imagekiln.steps.export.removal import count_left
from imagekiln.steps.export.selection import exported_columns, iter_partitions
from imagekiln.steps.export.settings import ExportSettings, read_settings
from imagekiln.steps.runs.finished_runs import find_finished_runs
from imagekiln.steps.runs.forgotten import read_forgotten_ids
from imagekiln.steps.runs.image_id_index import ID_COLUMN
from imagekiln.steps.runs.keys import (
    CARD_KEY,
    EXPORT_KEY,
    PLAN_KEY,
    SUCCESS_KEY,
    forgotten_key,
    registry_key,
)
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.sanitize import format_command, quote_shell_word
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store, create_once, require_conditional_writes


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A complete export: the images that it has, the sum of their bytes, its files and its runs.

    `written` is the number of files that this call wrote. Left out were `duplicates`, which newer
    runs hold, and `superseded`, which newer images replace. `newest_by="id"` would leave out as
    well the `outdated`: newer runs have other images for their ids.
    """

    uri: str
    images: int
    bytes: int
    files: int
    runs: int
    written: int
    duplicates: int
    superseded: int
    outdated: int = 0


def export(
    source: str,
    destination: str,
    settings: ExportSettings | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Copy the images that are ok of the run or output at `source` to `destination`.

    What was planned first stays: an export that was interrupted resumes, whatever runs came since.
    Raises Missing where there are no images, BadInput where settings, source or destination must be
    corrected or an image is damaged, Incomplete where a run was not aggregated, where there are
    newer images than the export has, or where it has some that were taken down, TryAgain.
    """
    settings = settings or read_settings()
    store = open_store(destination)
    source_uri, _ = resolve_run(source)
    plan = find_export_plan(store)
    if plan is None:
        _require_free(store)
        _require_no_files(store)
        plan = freeze_export_plan(store, _make_plan(source_uri, store, settings))
        require_conditional_writes(store, EXPORT_KEY, write_export_plan(plan))
    require_settings(store, plan, settings)
    export_source = _open_source(source_uri, plan)
    written = 0
    if store.exists(SUCCESS_KEY):
        _require_none_taken_down(export_source, store)
    else:
        written = _write_export(export_source, store, progress or NoProgress())
    _require_none_newer(export_source.store, store, plan)
    images, size = count_left(store, plan)
    return ExportResult(
        uri=store.uri,
        images=images,
        bytes=size,
        files=len(plan.files),
        runs=len(plan.runs),
        written=written,
        duplicates=plan.duplicates,
        superseded=plan.superseded,
        outdated=plan.outdated,
    )


def _require_none_newer(source: Store, store: Store, plan: ExportPlan) -> None:
    """Raise Incomplete where a complete export lacks images of its source, also of a `retry`.

    A command after the export would take it for all that there is.
    """
    exported = {run.run_id: run.images for run in plan.runs}
    run_ids = list(exported)
    if not plan.is_run:
        run_ids = [entry.run_id for entry in find_finished_runs(source.uri)]

    def load(index: int) -> Summary:
        folder = source if plan.is_run else open_store(f"{source.uri}/{run_ids[index]}")
        return load_summary(folder)

    summaries = map_ordered(load, len(run_ids), RUN_READERS)
    newer = {
        run_id: summary.ok - exported.get(run_id, 0)
        for run_id, summary in zip(run_ids, summaries, strict=True)
        if summary.ok > exported.get(run_id, 0)
    }
    if newer:
        runs = pluralize(len(newer), "finished run")
        images = pluralize(sum(newer.values()), "image")
        verb = "is" if len(newer) == 1 else "are"
        first, *_, last = [*newer, *newer]
        names = first if first == last else f"{first} to {last}"
        raise Incomplete(
            f"{store.uri}: Already exported, but {runs} ({images}) {verb} not in it: {names}. "
            "Export to another folder."
        )


def _require_free(store: Store) -> None:
    for key in (PLAN_KEY, registry_key(0)):
        if store.exists(key):
            raise BadInput(
                f"{store.uri}: holds a run, or the runs of a job. Choose another destination."
            )


def _require_no_files(store: Store) -> None:
    """Raise BadInput where somebody's file has the name of one that ends an export."""
    for key in (CARD_KEY, manifest_chunk_key(0), SUCCESS_KEY):
        # Another process may have exported all of it just now.
        if store.exists(key) and find_export_plan(store) is None:
            raise BadInput(
                f"{store.uri_of(key)}: is there already, and of no export. "
                "Choose another destination."
            )


def _require_no_removal(source: ExportSource, store: Store) -> None:
    """Raise BadInput where images are being removed from an export, or were from its source."""
    if store.exists(forgotten_key(0)):
        raise BadInput(
            f"{store.uri}: images were being removed from this export. "
            "Run the command that forgets them again."
        )
    found = _find_forgotten(source, store)
    if found:
        raise BadInput(
            f"{store.uri}: image {found[0]} was taken down after this export was planned. If the "
            "command that forgets it was interrupted, repeat it. Then remove this export, and "
            "export to another destination."
        )


def _require_none_taken_down(source: ExportSource, store: Store) -> None:
    """Raise Incomplete where a complete export has images that its source has no more."""
    found = _find_forgotten(source, store)
    if found:
        options = ("--id", found[0], "--from-export", quote_shell_word(store.uri), "--remove")
        command = format_command("forget", source.store.uri, *options)
        count = pluralize(len(found), "image in it was", "images in it were")
        raise Incomplete(
            f"{store.uri}: {count} taken down since it was exported. "
            f"Repeat the command that forgets them with this export, as in `{command}`."
        )


def _find_forgotten(source: ExportSource, store: Store) -> list[str]:
    """The planned images that were taken down from their runs, and not from the export."""
    forgotten = source.read_forgotten()
    removed = frozenset(read_forgotten_ids(store).to_pylist())
    image_ids = pa.array(set[str]().union(*forgotten.values()) - removed, pa.string())
    found = list[str]()
    for number in range(len(source.plan.files) if len(image_ids) else 0):
        rows = read_file_rows(store, source.plan, number).select(["image_id", "part"])
        for row in rows.filter(pc.is_in(rows["image_id"], image_ids)).to_pylist():
            run_id, _, _ = row["part"].partition("/")
            if row["image_id"] in forgotten.get(run_id, ()):  # not only from another that had it
                found.append(row["image_id"])
    return found


def _make_plan(source: str, store: Store, settings: ExportSettings) -> ExportPlan:
    """Write the rows of each file, and return the plan that names them."""
    all_columns = open_dataset(source, settings.columns).columns
    columns = exported_columns(all_columns, settings.columns)
    dataset = open_dataset(source, columns, newest_by=settings.newest_by)
    runs = tuple(_exported_runs(dataset))
    run_ids = [run.run_id for run in runs]

    files = list[ExportFile]()
    for partition in iter_partitions(dataset, run_ids, settings.partition_by):
        files += write_partition(store, partition, settings, len(files))
    if not files:
        raise BadInput(f"{source}: has no image that is ok, so there is nothing to export.")
    return ExportPlan(
        schema_version=EXPORT_VERSION,
        settings=settings,
        is_run=open_store(source).exists(PLAN_KEY),
        runs=runs,
        files=tuple(files),
        duplicates=0 if dataset.replaced is None else dataset.replaced.duplicates,
        superseded=0 if dataset.replaced is None else dataset.replaced.superseded,
        outdated=_count_outdated(dataset),
    )


def _count_outdated(dataset: Dataset) -> int:
    """The images that newer runs have others for, by the ids of their rows, and that are left."""
    if dataset.replaced is None or dataset.replaced.column != ID_COLUMN:
        return 0
    by_id = find_replaced_images(dataset.runs, "id")
    if by_id is None:
        return 0
    left_out = by_id.superseded + by_id.duplicates
    return left_out - dataset.replaced.duplicates


def _exported_runs(dataset: Dataset) -> Iterator[ExportedRun]:
    for run in dataset.runs:
        folder = open_store(run.uri)
        yield ExportedRun(load_plan(folder).run_id, run.suffix, load_summary(folder).ok)


def _open_source(uri: str, plan: ExportPlan) -> ExportSource:
    """The source of an export. Raises BadInput where its images come from another one."""
    store = open_store(uri)
    first = plan.runs[0].run_id
    folder = store if plan.is_run else open_store(f"{store.uri}/{first}")
    if folder.exists(PLAN_KEY) and load_plan(folder).run_id == first:
        return ExportSource(store, plan)
    kind = "run" if plan.is_run else "output with run"
    raise BadInput(
        f"{store.uri}: is not the {kind} {first} that was exported before. "
        "Name that, or another destination."
    )


def _write_export(source: ExportSource, store: Store, progress: Progress) -> int:
    """Write what is missing, and return how many files those were."""
    plan = source.plan
    _require_no_removal(source, store)
    progress.start(plan.images)
    written = 0
    for number, file in enumerate(plan.files):
        if store.exists(file.key):
            progress.add_existing(file.images)
            continue
        content = make_file(source, store, number)
        progress.add_drawn(file.images)
        written += store.create(file.key, content)
        progress.add_committed(file.images)

    for number, chunk in enumerate(iter_manifest(store, plan)):
        create_once(store, manifest_chunk_key(number), to_parquet(chunk))
    _write_card(store, plan)
    _require_no_removal(source, store)  # which may have begun meanwhile, and is not done
    create_once(store, SUCCESS_KEY, success_marker(plan.images))
    progress.close()
    return written


def _write_card(store: Store, plan: ExportPlan) -> None:
    rows = read_file_rows(store, plan, 0)
    columns = rows.select(file_columns(plan, rows)).schema
    card = render_export_card(plan, columns, plan.images, plan.bytes)
    create_once(store, CARD_KEY, card.encode(errors="replace"))
