"""Takedown of images: their removal from runs, and from the given exports.

A first commit announces the ids, and the parts to be replaced. New parts without these images are
written, and the next commit counts them. Then the old parts are buried: they are overwritten by a
part without rows, and their names stay taken. If any step is killed, running the same command again
finishes the work. The row of an image stays, with its prompt and the status `forgotten`.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.reconcile import RunReconciler
from imagekiln.steps.aggregate.step import aggregate_run, count_run
from imagekiln.steps.aggregate.verdict import resolve_policy
from imagekiln.steps.errors import BadInput, Incomplete, Missing, cut_name
from imagekiln.steps.export.commits import require_export
from imagekiln.steps.export.step import export_again
from imagekiln.steps.job.prompts import ORIGINAL_COLUMN
from imagekiln.steps.maintain.retry import end_retry
from imagekiln.steps.maintain.run_list import open_runs
from imagekiln.steps.runs.commits import Head, Takedown, commit_next, create_commit, digest_of
from imagekiln.steps.runs.image import FORGOTTEN_STATUS
from imagekiln.steps.runs.keys import (
    IMAGES_FOLDER,
    PREVIEW_FOLDER,
    REPORT_FOLDER,
    SHA256_PATTERN,
    reduced_part_key,
)
from imagekiln.steps.runs.manifest import read_forgotten, write_forgotten
from imagekiln.steps.runs.parts import bury, reduce_part
from imagekiln.steps.runs.run import Run, iter_named_parts, read_shard_columns
from imagekiln.steps.runs.shard import read_row_schema, read_shard_rows
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA, added_fields, read_column
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

UNFINISHED_PARTS = f"{IMAGES_FOLDER}/.writing-"
NO_ROWS = IMAGE_ROW_SCHEMA.empty_table().select(["image_id", "id"])
COPIES_FOLDERS = tuple(
    f"{report}/{folder}"
    for report in (REPORT_FOLDER, f"{PREVIEW_FOLDER}/{REPORT_FOLDER}")
    for folder in ("thumbnails", "images")
)


@dataclass(frozen=True, slots=True)
class ForgetSelection:
    """Selection of images by id or by prompt.

    `ids` are ids of images or of rows. `prompt_parts` are strings that a prompt contains, ignoring
    case. `prompt_hashes` are SHA-256 hashes of whole prompts in UTF-8. For a rewritten prompt, the
    original counts as well.
    """

    ids: tuple[str, ...] = ()
    prompt_parts: tuple[str, ...] = ()
    prompt_hashes: tuple[str, ...] = ()

    def select(self, rows: pa.Table, prompt_columns: Sequence[str] = ("prompt",)) -> pa.Table:
        """Return the image and row ids of the selected rows, by any of the prompt columns."""
        ids = pa.array(self.ids, pa.string())
        lowered = map(str.lower, self.prompt_hashes)
        hashes = pa.array(lowered, pa.string())
        is_image = pc.is_in(rows["image_id"], ids)
        is_row = pc.is_in(rows["id"], ids)
        is_selected = pc.or_(is_image, is_row)
        for name in prompt_columns:
            prompts = pc.fill_null(rows[name], "")
            for text in filter(None, self.prompt_parts):
                contains = pc.match_substring(prompts, text, ignore_case=True)
                is_selected = pc.or_(is_selected, contains)
            if self.prompt_hashes:
                texts = prompts.to_pylist()
                digests = [digest_of(text.encode()) for text in texts]
                column = pa.array(digests, pa.string())
                has_hash = pc.is_in(column, hashes)
                is_selected = pc.or_(is_selected, has_hash)
        ids_of_rows = rows.select(["image_id", "id"])
        return ids_of_rows.filter(is_selected)

    def require_valid(self) -> None:
        """Raise BadInput if the selection is empty, or a hash is malformed."""
        if not (self.ids or any(self.prompt_parts) or self.prompt_hashes):
            raise BadInput("Nothing says which images to forget. Name ids, or texts of prompts.")
        for digest in self.prompt_hashes:
            lowered = digest.lower()
            if re.fullmatch(SHA256_PATTERN, lowered) is None:
                raise BadInput(
                    f"prompt hash {cut_name(digest)!r}: is no SHA-256. Write its 64 hexadecimal "
                    "digits, of the whole prompt in UTF-8."
                )


@dataclass(frozen=True, slots=True)
class ForgottenImages:
    """Number of images of a run that were selected and not forgotten before."""

    uri: str
    images: int


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """Selected images by run. `removed` is true if they were taken down.

    `unknown_ids` are the given ids that match no row and no image.
    """

    runs: tuple[ForgottenImages, ...]
    removed: bool
    unknown_ids: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        """Number of selected images in all runs."""
        return sum(run.images for run in self.runs)


def forget(
    uri: str,
    selection: ForgetSelection,
    exports: Sequence[str] = (),
    *,
    remove: bool = False,
) -> ForgetResult:
    """Select images of the run or output at `uri`; with `remove`, take them down.

    The given exports of the runs or of their output are then updated. Raises BadInput if the
    selection is empty or a run is not complete, Missing if there is no run or no export, TryAgain.
    """
    selection.require_valid()
    for name in exports:  # a wrong name is reported before anything is removed
        require_export(open_store(name))
    runs = open_runs(uri)
    for run in runs:
        _require_complete(run)
    counts = list[ForgottenImages]()
    unknown_ids = dict.fromkeys(selection.ids)
    for run in runs:
        rows = _select(run, selection)
        ids = rows["image_id"].combine_chunks()
        for name in {*rows["id"].to_pylist(), *ids.to_pylist()}:
            unknown_ids.pop(name, None)
        new_ids = _without(ids, read_forgotten(run.store, run.head.commit))
        counts.append(ForgottenImages(run.store.uri, len(new_ids)))
        if remove and (len(ids) or run.head.commit.takedown is not None):
            _forget_in_run(run, ids)
    for name in exports if remove else ():
        export_again(uri, name)
    return ForgetResult(tuple(counts), remove, tuple(unknown_ids))


def _require_complete(run: Run) -> None:
    """Raise BadInput if the job has a part left to make.

    An unfinished retry is ended later instead.
    """
    if run.is_complete or run.head.uncounted_retry is not None:
        return
    output = run.store.uri.rpartition("/")[0] or "."
    raise BadInput(
        f"{run.store.uri}: is not complete, so a process may still make its images. Run its job to "
        f"the end, or remove it (`{format_command('gc', output)}`)."
    )


def _select(run: Run, selection: ForgetSelection) -> pa.Table:
    """Return the ids of a run's selected images, and of their rows."""
    columns = ["prompt"]
    if run.plan.rewrite is not None:
        columns.append(ORIGINAL_COLUMN)

    def select(number: int) -> pa.Table:
        rows = read_shard_rows(run.store, run.plan, number)
        return selection.select(rows, columns)

    shards = map_ordered(select, len(run.plan.shards))
    return pa.concat_tables([NO_ROWS, *shards])


def _without(ids: pa.Array, earlier: pa.Array) -> pa.Array:
    return ids.filter(pc.invert(pc.is_in(ids, earlier)))


def _forget_in_run(run: Run, image_ids: pa.Array) -> None:
    """Take these images of a run down, or finish an interrupted takedown.

    A takedown begun by another process is finished first.
    """

    def attempt(head: Head) -> Run | None:
        current = replace(run, head=head)
        if head.commit.takedown is not None:
            _take_down(current, head.commit.takedown)
            return None  # check what is left
        if head.uncounted_retry is not None:
            end_retry(current, head.uncounted_retry)
            return None
        forgotten = read_forgotten(run.store, head.commit)
        new_ids = _without(image_ids, forgotten)
        if not len(new_ids):
            return current
        _require_complete(current)
        all_ids = pa.concat_arrays([forgotten, new_ids])
        _announce(current, all_ids)
        return None

    current = commit_next(run.store, attempt)
    schema = read_row_schema(run.store, run.plan)
    added = added_fields(run.plan.job)
    bury(run.store, current.head.commit.buried, schema, added)
    _remove_copies(run.store)
    with suppress(Incomplete):  # it was incomplete before
        aggregate_run(run)  # to update the report


def _announce(run: Run, image_ids: pa.Array) -> None:
    """Commit the ids of the images to be taken down, and the parts to be replaced."""
    head = run.head
    parts = sorted(_parts_with(run, image_ids))
    takedown = Takedown(
        number=head.number + 1,
        ids=write_forgotten(run.store, image_ids),
        parts=tuple(parts),
    )
    commit = replace(head.commit, kind="forget", takedown=takedown)
    create_commit(run.store, head, commit)


def _parts_with(run: Run, image_ids: pa.Array) -> set[str]:
    """Find the parts that have a row of one of these images in the manifests."""

    def find(number: int) -> pa.ChunkedArray:
        manifest = read_shard_columns(run, number, ["image_id", "part", "status"])
        is_named = pc.is_in(manifest["image_id"], image_ids)
        is_left = pc.not_equal(manifest["status"], FORGOTTEN_STATUS)
        is_taken = pc.and_(is_named, is_left)
        return manifest["part"].filter(is_taken)

    parts: set[str] = set()
    for found in map_ordered(find, len(run.plan.shards)):
        parts.update(found.to_pylist())
    return parts


def _take_down(run: Run, takedown: Takedown) -> None:
    """Write the parts without the images, and count them, unless another process was faster."""
    image_ids = read_column(run.store, takedown.ids, "image_id")
    for part in iter_named_parts(run, takedown.parts):
        new_key = reduced_part_key(part.key, takedown.number)
        if not reduce_part(run.store, part, new_key, image_ids):
            return  # buried: another process has counted the new part

    policy = resolve_policy(run)
    reconciler = RunReconciler(run, takedown)
    counted = count_run(run, policy, reconciler)
    commit = replace(
        counted.commit,
        takedown=None,
        forgotten=takedown.ids,
        buried=(*run.head.commit.buried, *takedown.parts),
    )
    replace(counted, commit=commit).commit_as("forgotten")


def _remove_copies(store: Store) -> None:
    """Remove the copies of images in the preview, and in the report, which is written again.

    Also removes partial parts left on this disk by killed processes.
    """
    for folder in (IMAGES_FOLDER, *COPIES_FOLDERS):
        for entry in list(store.list_folder(folder)):
            is_unfinished = entry.key.startswith(UNFINISHED_PARTS)
            if not entry.is_folder and (is_unfinished or folder != IMAGES_FOLDER):
                with suppress(Missing):
                    store.remove(entry.key)
