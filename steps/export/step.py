"""Export of a run, or of all runs of an output, into files of a chosen size.

An export is incremental: the same command adds new images of its source, and drops deleted ones.
The export's highest commit is read before the runs. Files are announced by a commit, written, and
counted by the next commit. A killed export therefore resumes, and concurrent exports do not
conflict.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.dataset.runs import RunSource, find_runs
from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.export.card import write_card
from imagekiln.steps.export.commits import (
    EXPORT_VERSION,
    FORMAT_SUFFIXES,
    ROWS_FOLDER,
    ExportCommit,
    ExportedRun,
    ExportFile,
    ExportHead,
    create_export_commit,
    data_key,
    is_highest,
    read_export,
    read_file_rows,
    remove_dropped,
    require_export,
    require_settings,
    rows_key,
)
from imagekiln.steps.export.comparing import Mask, compare_images
from imagekiln.steps.export.formats import assign_pieces, make_file, write_pieces
from imagekiln.steps.export.rows import (
    cut_rows,
    folder_of,
    iter_partitions,
    iter_rows,
    open_images,
)
from imagekiln.steps.export.settings import ExportSettings, read_settings
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import ExportFormat
from imagekiln.steps.runs.commits import MAX_TRIES, digest_of
from imagekiln.steps.runs.keys import COMMITS_FOLDER, PLAN_KEY, SUCCESS_KEY, commit_key
from imagekiln.steps.runs.registry import read_entries
from imagekiln.steps.runs.run import split_address
from imagekiln.steps.runs.tables import to_parquet
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.steps.storage.uri import is_remote_uri


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A complete export: its images, their total bytes, its files and its runs.

    This call has `added` images and `dropped` others, and left the rest `unchanged`.
    """

    uri: str
    images: int
    bytes: int
    files: int
    runs: int
    added: int
    dropped: int
    unchanged: int


@dataclass(frozen=True, slots=True)
class _Source:
    """The runs in an output, or only the one in its folder `run`."""

    output: Store
    run: str | None

    @property
    def uri(self) -> str:
        if self.run is None:
            return self.output.uri
        return self.output.uri_of(self.run)


def export(
    source: str,
    destination: str,
    settings: ExportSettings | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Copy the images that are ok of the run or output at `source` to `destination`.

    An existing export is updated. Raises Missing if there are no images, BadInput if settings,
    source or destination are wrong or an image is damaged, Incomplete if a run was not aggregated,
    TryAgain if storage fails or other processes keep changing the export.
    """
    settings = settings or read_settings()
    store = open_store(destination)
    opened = _open_source(source)
    added = dropped = 0
    for _ in range(MAX_TRIES):
        # Reading the runs first could drop images that a faster export has added.
        head = read_export(store) or _begin(opened, store, settings)
        commit = head.commit
        require_settings(store, commit, settings)
        _require_same_source(opened, store, commit)
        if commit.announced is not None:
            if _make_announced(opened, store, head, progress or NoProgress()):
                counted = replace(commit, files=commit.announced, announced=None)
                if create_export_commit(store, head.number + 1, counted):
                    added += counted.images - counted.unchanged
                    dropped += commit.images - counted.unchanged
                continue
        elif _is_unchanged(commit, opened):
            # Another process may have announced images that were then forgotten.
            if is_highest(store, head):
                return _finish(store, head, added, dropped)
            continue
        create_export_commit(store, head.number + 1, _plan_next(opened, store, head))
    raise TryAgain(f"{store.uri}: other processes keep changing it. Run the command again.")


def export_again(uri: str, destination: str) -> None:
    """Update an export of the run or the output at `uri`, with the settings it was made with.

    Raises as `export` does.
    """
    commit = require_export(open_store(destination)).commit
    source = _Source(_open_source(uri).output, commit.run)
    export(source.uri, destination, commit.settings)


def export_run(job: Job, uri: str, progress: Progress | None = None) -> tuple[ExportResult, ...]:
    """Update the exports that a job requests, with the finished runs of its output.

    `uri` is a finished run of the output. If none of its images is ok, nothing is done. Raises as
    `export` does.
    """
    source = _open_source(uri)
    if not load_summary(open_store(source.uri)).ok:
        return ()
    results = list[ExportResult]()
    for wanted in job.export:
        settings = read_settings(
            wanted.format,
            wanted.file_size,
            wanted.partition_by,
            wanted.columns,
            triplets=wanted.triplets,
        )
        results.append(export(source.output.uri, wanted.to, settings, progress))
    return tuple(results)


def _open_source(uri: str) -> _Source:
    uri, _ = split_address(uri)
    store = open_store(uri)
    if not store.exists(PLAN_KEY):
        return _Source(store, None)
    path = store.uri
    if not is_remote_uri(uri):
        path = str(Path(uri).absolute())
    output, folder = os.path.split(path)
    return _Source(open_store(output), folder)


def _require_same_source(source: _Source, store: Store, commit: ExportCommit) -> None:
    """Raise BadInput if the images of an export come from another source."""
    if not commit.runs:
        return
    known: set[str | None] = {source.run}
    if source.run is None:  # the registry also names runs whose folders are gone
        known = {entry.run_id for entry in read_entries(source.output.uri)}
    is_same_kind = (source.run is None) == (commit.run is None)
    if not is_same_kind or known.isdisjoint(run.run_id for run in commit.runs):
        kind = "run" if commit.run else "output with run"
        raise BadInput(
            f"{source.uri}: is not the {kind} {commit.runs[0].run_id} that was exported to "
            f"{store.uri} before. Name that, or another destination."
        )


def _is_unchanged(commit: ExportCommit, source: _Source) -> bool:
    """Return whether the runs of a source match a commit. Raises as `find_runs` does."""
    return commit.runs == tuple(map(_describe_run, find_runs(source.uri)))


def _describe_run(run: RunSource) -> ExportedRun:
    names = "\n".join(run.manifests)
    return ExportedRun(folder_of(run), run.suffix, digest_of(names.encode()))


def _begin(source: _Source, store: Store, settings: ExportSettings) -> ExportHead:
    """Return the state before the first commit. Raises BadInput if the folder has other files."""
    entries = sorted(entry.key for entry in store.list_folder(""))
    strange = [key for key in entries if key not in (COMMITS_FOLDER, ROWS_FOLDER)]
    # Another process may have completed the export just now.
    if strange and not store.exists(commit_key(0)):
        raise BadInput(
            f"{store.uri_of(strange[0])}: is there already, and of no export. "
            "Choose another destination."
        )
    return ExportHead(-1, ExportCommit(EXPORT_VERSION, settings, source.run))


def _plan_next(source: _Source, store: Store, head: ExportHead) -> ExportCommit:
    """Plan the commit that announces the files of the current source. Raises BadInput, TryAgain.

    A file is kept if all of its images are. Other images are copied into new files.
    """
    commit = head.commit
    settings = commit.settings
    number = head.number + 1
    first_schema = read_file_rows(store, commit.files[0]).schema if commit.files else None
    dataset, schema = open_images(source.uri, settings, first_schema)
    runs = tuple(map(_describe_run, dataset.runs))
    run_ids = [run.run_id for run in runs]
    source_rows = iter_rows(dataset, schema)
    files, is_new, unchanged = compare_images(store, commit, run_ids, source_rows)
    tables = _select(iter_rows(dataset, schema), is_new)
    made = 0
    for folder, rows_of in iter_partitions(tables, schema, settings.partition_by):
        files_of_rows = cut_rows(
            rows_of, settings.file_size, settings.format, triplets=settings.triplets
        )
        for rows in files_of_rows:
            place = (number, made)
            file = _plan_file(store, settings.format, rows, folder, place)
            files.append(file)
            made += 1
    if not files and head.number < 0:
        raise BadInput(f"{source.uri}: has no image that is ok, so there is nothing to export.")
    return replace(
        commit,
        runs=runs,
        announced=tuple(assign_pieces(files, commit.files, number)),
        unchanged=unchanged,
    )


def _plan_file(
    store: Store, kind: ExportFormat, rows: pa.Table, partition: str, place: tuple[int, int]
) -> ExportFile:
    """Write the rows of a file, and return it without a piece of the manifest.

    `place` is the number of the announcing commit, and the number of the file in it.
    """
    content = to_parquet(rows)
    sha256 = digest_of(content)
    store.create(rows_key(sha256), content)
    key = data_key(partition, *place, sha256, FORMAT_SUFFIXES[kind])
    size = pc.sum(rows["byte_size"]).as_py()
    return ExportFile(key, rows.num_rows, size, sha256, manifest="")


def _select(tables: Iterator[pa.Table], mask: Mask) -> Iterator[pa.Table]:
    start = 0
    for table in tables:
        end = start + table.num_rows
        if mask[start:end].any():
            yield table.filter(pa.array(mask[start:end]))
        start = end


def _make_announced(source: _Source, store: Store, head: ExportHead, progress: Progress) -> bool:
    """Write missing files. Return False if they cannot be made, since the source has changed.

    A process that resumes after others have dropped a file may write it again. The next export
    deletes it, since dropped names are never reused.
    """
    commit = head.commit
    known = {file.key for file in commit.files}
    files = [file for file in commit.announced or () if file.key not in known]
    progress.start(sum(file.images for file in files))
    for file in files:
        if store.exists(file.key):
            progress.add_existing(file.images)
            continue
        try:
            content = make_file(source.output, store, commit, file)
        except BadInput:
            if _is_unchanged(commit, source) and is_highest(store, head):
                raise
            return False
        progress.add_drawn(file.images)
        store.create(file.key, content)
        progress.add_committed(file.images)
    write_pieces(store, commit)
    progress.close()
    return True


def success_marker(head: ExportHead) -> bytes:
    """Return the content of `_SUCCESS` if card and folders match this commit."""
    return f"{head.commit.images} images, commit {head.number}\n".encode()


def is_complete(store: Store, head: ExportHead) -> bool:
    """Return whether the export has all announced files, and no dropped ones."""
    if not store.exists(SUCCESS_KEY):
        return False
    return store.read(SUCCESS_KEY) == success_marker(head)


def _finish(store: Store, head: ExportHead, added: int, dropped: int) -> ExportResult:
    """Delete dropped files, and write the card and the success marker if they are outdated."""
    commit = head.commit
    remove_dropped(store, head)
    if not is_complete(store, head):
        write_card(store, commit)
        store.replace(SUCCESS_KEY, success_marker(head))
    return ExportResult(
        uri=store.uri,
        images=commit.images,
        bytes=commit.bytes,
        files=len(commit.files),
        runs=len(commit.runs),
        added=added,
        dropped=dropped,
        unchanged=commit.images - added,
    )
