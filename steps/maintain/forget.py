"""Takes images down: removes them from runs, and from exports that are named.

The ids are written down first, and decide from then on (`runs/forgotten`). Then the run is
unfinished; its parts are written again without the images, what shows them is removed, and it is
aggregated again. Whatever is killed in between, the same command does the rest. A row stays where
an image was, with its prompt and the status `forgotten`: the plan says that there was one.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.output_card import update_card_with
from imagekiln.steps.aggregate.publishing import suspend_success
from imagekiln.steps.aggregate.step import aggregate_run
from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.dataset.runs import require_not_suspended
from imagekiln.steps.errors import BadInput, Missing, cut_name
from imagekiln.steps.export.removal import remove_from_export, require_complete_export
from imagekiln.steps.job.rewrite import ORIGINAL_COLUMN
from imagekiln.steps.maintain.run_list import open_runs
from imagekiln.steps.runs.forgotten import (
    NO_IDS,
    add_forgotten,
    iter_stored_images,
    read_forgotten,
    read_forgotten_ids,
)
from imagekiln.steps.runs.formats import format_of
from imagekiln.steps.runs.keys import PREVIEW_FOLDER, REPORT_FOLDER, SHA256_PATTERN
from imagekiln.steps.runs.parts import Part
from imagekiln.steps.runs.rounds import Round, Run, iter_rounds
from imagekiln.steps.runs.shard import read_shard, read_shard_rows
from imagekiln.steps.runs.turns import TurnStore
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import error_reason
from imagekiln.steps.storage.store import Store

SHOWN_FOLDERS = ("thumbnails", "images")  # of a report: copies of images


@dataclass(frozen=True, slots=True)
class ForgetSelection:
    """Which images: those with one of these ids, or of one of these prompts.

    `ids` are of images or of rows. `prompt_parts` are texts that a prompt contains, in whatever
    case, and `prompt_hashes` the SHA-256 of whole prompts in UTF-8. Of a prompt that a language
    model rewrote, the original counts as well.
    """

    ids: tuple[str, ...] = ()
    prompt_parts: tuple[str, ...] = ()
    prompt_hashes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was named."""
        return not (self.ids or any(self.prompt_parts) or self.prompt_hashes)

    def select(self, rows: pa.Table, prompt_columns: Sequence[str] = ("prompt",)) -> pa.Array:
        """The ids of those images that are among these rows, by any of the columns of prompts."""
        ids = pa.array(self.ids, pa.string())
        is_selected = pc.or_(
            pc.is_in(rows["image_id"], ids),
            pc.fill_null(pc.is_in(rows["id"], ids), False),
        )
        for name in prompt_columns:
            prompts = pc.fill_null(rows[name], "")
            is_match = self._match(prompts)
            is_selected = pc.or_(is_selected, is_match)
        return rows["image_id"].filter(is_selected).combine_chunks()

    def matched_ids(self, rows: pa.Table) -> pa.Array:
        """Which of the ids that were named these rows have."""
        ids = pa.array(self.ids, pa.string()).unique()
        is_image = pc.is_in(ids, rows["image_id"])
        is_row = pc.is_in(ids, rows["id"])
        is_known = pc.or_(is_image, is_row)
        return ids.filter(is_known)

    def require_valid(self) -> None:
        """Raise BadInput where nothing is named, or what is no hash."""
        if self.is_empty:
            raise BadInput("Nothing says which images to forget. Name ids, or texts of prompts.")
        for digest in self.prompt_hashes:
            lowered = digest.lower()
            if re.fullmatch(SHA256_PATTERN, lowered) is None:
                raise BadInput(
                    f"prompt hash {cut_name(digest)!r}: is no SHA-256. Write its 64 hexadecimal "
                    "digits, of the whole prompt in UTF-8."
                )

    def _match(self, prompts: pa.ChunkedArray) -> pa.ChunkedArray:
        """Whether each of these prompts is one that was named."""
        hashes = frozenset(map(str.lower, self.prompt_hashes))
        is_match = pa.array([False] * len(prompts))
        for text in filter(None, self.prompt_parts):
            contains = pc.match_substring(prompts, text, ignore_case=True)
            is_match = pc.or_(is_match, contains)
        if hashes:
            has_hash = [_sha256(prompt) in hashes for prompt in prompts.to_pylist()]
            is_match = pc.or_(is_match, pa.array(has_hash))
        return is_match


@dataclass(frozen=True, slots=True)
class _RunSelection:
    """Images of a run that were selected, and the ids that were named and that it has."""

    image_ids: pa.Array
    matched_ids: pa.Array


@dataclass(frozen=True, slots=True)
class ForgottenImages:
    """The images of an export, or planned ones of a run, that were selected; how many are new."""

    uri: str
    images: int
    new: int


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """What was selected, and whether it was removed.

    `unknown_ids` are those of the ids that were named that no row and no image has, nor any of the
    exports.
    """

    runs: tuple[ForgottenImages, ...]
    exports: tuple[ForgottenImages, ...]
    removed: bool
    unknown_ids: tuple[str, ...] = ()

    @property
    def images(self) -> int:
        """The images that were selected, in all runs."""
        return sum(run.images for run in self.runs)


def read_ids(path: Path) -> tuple[str, ...]:
    """The ids in a file of UTF-8 text, one on each line. Raises BadInput."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path}: cannot be read as text ({error_reason(error)}). Write an id on each line."
        ) from error
    return tuple(filter(None, map(str.strip, lines)))


def forget(
    uri: str,
    selection: ForgetSelection,
    exports: Sequence[str] = (),
    *,
    remove: bool = False,
) -> ForgetResult:
    """Select images of the run or output at `uri`; with `remove`, take them down.

    They are also removed from these exports. Raises BadInput where nothing is selected by anything,
    or where a run is not finished, Incomplete where its objects are being replaced, Missing where
    there is no run, TryAgain.
    """
    selection.require_valid()
    for name in exports:  # a wrong name is found before anything is removed
        require_complete_export(open_store(name))
    runs = _open_runs(uri)
    matches = [_select(run, selection) for run in runs]
    selected = [match.image_ids for match in matches]
    known = [read_forgotten(run.store, run.plan) for run in runs]
    counts = [
        ForgottenImages(run.store.uri, len(ids), len(_without(ids, earlier)))
        for run, ids, earlier in zip(runs, selected, known, strict=True)
    ]
    all_ids = pa.concat_arrays([NO_IDS, *selected]).unique()
    if remove:
        for run, ids, earlier in zip(runs, selected, known, strict=True):
            _forget_in_run(run, _without(ids, earlier), pa.concat_arrays([earlier, ids]).unique())
        with_ids = [run for run, ids in zip(runs, selected, strict=True) if len(ids)]
        if with_ids:
            # What was killed had perhaps not come to it.
            update_card_with(with_ids[-1].store.uri, with_ids[-1].plan)
    unknown_ids = _unknown_ids(selection, [match.matched_ids for match in matches])
    # An export may have images of a run that is gone.
    ids_in_exports = pa.concat_arrays([all_ids, pa.array(unknown_ids, pa.string())])
    removals = [
        remove_from_export(open_store(name), ids_in_exports, remove=remove) for name in exports
    ]
    return ForgetResult(
        runs=tuple(counts),
        exports=tuple(
            ForgottenImages(name, len(images), len(new))
            for name, (images, new) in zip(exports, removals, strict=True)
        ),
        removed=remove,
        unknown_ids=_unknown_ids(
            selection, [*(match.matched_ids for match in matches), *(ids for ids, _ in removals)]
        ),
    )


def _unknown_ids(selection: ForgetSelection, found: Sequence[pa.Array]) -> tuple[str, ...]:
    """The ids that were not found, in the order in which they were named."""
    unknown = dict.fromkeys(selection.ids)
    for ids in found:
        for name in ids.to_pylist():
            unknown.pop(name, None)
    return tuple(unknown)


def _open_runs(uri: str) -> list[Run]:
    """The runs to look through. Raises BadInput where one may still be made, or cannot be read."""
    runs = open_runs(uri)
    for run in runs:
        _require_ended(run)
    return runs


def _require_ended(run: Run) -> None:
    # What was begun here and killed left the run unfinished, with ids.
    was_begun = len(read_forgotten(run.store, run.plan)) > 0
    if not (run.is_finished or was_begun):
        require_not_suspended(run.store)
        raise BadInput(
            f"{run.store.uri}: is not finished, so a process may still make its images. Run its "
            f"job to the end, or remove it (`{format_command('gc', _parent(run.store.uri))}`)."
        )
    for retry_round in iter_rounds(run.store, run.plan):
        if not retry_round.has_ended:
            raise BadInput(
                f"{retry_round.store.uri}: this round is not finished. First resume it: "
                f"`{format_command('retry', run.store.uri)}`."
            )


def _parent(uri: str) -> str:
    return uri.rpartition("/")[0] or "."


def _select(run: Run, selection: ForgetSelection) -> _RunSelection:
    columns = ("prompt",) if run.plan.rewrite is None else ("prompt", ORIGINAL_COLUMN)

    def select(number: int) -> _RunSelection:
        rows = read_shard_rows(run.store, run.plan, number)
        image_ids = selection.select(rows, columns)
        matched_ids = selection.matched_ids(rows)
        return _RunSelection(image_ids, matched_ids)

    shards = list(map_ordered(select, len(run.plan.shards)))
    image_ids = [shard.image_ids for shard in shards]
    matched_ids = [shard.matched_ids for shard in shards]
    ids = pa.concat_arrays([NO_IDS, *image_ids])
    all_matched = pa.concat_arrays([NO_IDS, *matched_ids])
    return _RunSelection(ids, all_matched.unique())


def _without(ids: pa.Array, earlier: pa.Array) -> pa.Array:
    return ids.filter(pc.invert(pc.is_in(ids, earlier)))


def _forget_in_run(run: Run, new: pa.Array, forgotten: pa.Array) -> None:
    """Take these images down. `new` are those of them that are not written down yet."""
    if not len(forgotten):
        return
    ids = frozenset(forgotten.to_pylist())
    if not len(new) and _is_done(run, ids):
        return
    turn = TurnStore(run.store)  # no aggregation that began before writes any more
    if len(new):
        add_forgotten(turn, new)
    ids = frozenset(read_forgotten_ids(turn).to_pylist())  # those of another command, too
    # No reader takes a run for finished whose manifest names bytes that are gone.
    suspend_success(replace(run, store=turn))
    part_format = format_of(run.plan.job)
    for planned, part in _parts_with(run, ids):
        part_format.empty(turn.hold(planned.store), part, ids)
    _remove_copies(turn)
    failed_share, accepted = _accepted(run)
    aggregate_run(run, failed_share, accepted)


def _is_done(run: Run, ids: frozenset[str]) -> bool:
    """Whether the run is finished, not suspended, and has these images in no part."""
    return run.is_finished and not run.is_suspended and not any(_iter_stored_images(run, ids))


def _parts_with(run: Run, ids: frozenset[str]) -> Iterator[tuple[Round, Part]]:
    """The parts of the run and of its rounds that were planned with one of these images."""
    for planned in (Round(run.store, run.plan), *iter_rounds(run.store, run.plan)):
        for number in range(len(planned.plan.shards)):
            for part in read_shard(planned.store, planned.plan, number):
                if not ids.isdisjoint(part.rows["image_id"].to_pylist()):
                    yield planned, part


def _iter_stored_images(run: Run, ids: frozenset[str]) -> Iterator[str]:
    part_format = format_of(run.plan.job)
    for planned, part in _parts_with(run, ids):
        yield from iter_stored_images(planned.store, part_format, part, ids)


def _remove_copies(store: Store) -> None:
    """Remove the copies of images in the report; it is written again. Those of a preview, too."""
    for report in (REPORT_FOLDER, f"{PREVIEW_FOLDER}/{REPORT_FOLDER}"):
        for folder in SHOWN_FOLDERS:
            entries = [*store.list_folder(f"{report}/{folder}")]
            for key in (entry.key for entry in entries if not entry.is_folder):
                with suppress(Missing):
                    store.remove(key)


def _accepted(run: Run) -> tuple[float | None, tuple[str, ...]]:
    """What the run was accepted with: it is not finished now, but was."""
    with suppress(Missing):
        summary = load_summary(run.store)
        return summary.failed_share, summary.accepted
    return None, ()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
