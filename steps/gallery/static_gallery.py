"""A gallery of files alone, which any web server shows: made beside the runs, or anywhere else.

The page comes first, which says that the gallery is not complete, then the rows, run by run, and
what names all of them last. Interrupted, the same call goes on: what exists is not made again.
"""

import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from urllib.parse import quote, urlsplit

import pyarrow as pa

from imagekiln.steps.dataset.runs import require_unchanged
from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.steps.gallery.columns import IndexColumn, index_columns
from imagekiln.steps.gallery.gallery import describe_choices
from imagekiln.steps.gallery.index import MAX_PROBLEMS, IndexProgress
from imagekiln.steps.gallery.nights import NightFigures, read_nights
from imagekiln.steps.gallery.page import load_page
from imagekiln.steps.gallery.runs import GalleryRun, GalleryRuns, find_gallery_runs
from imagekiln.steps.gallery.static_columns import CHUNK_ROWS, StaticColumns
from imagekiln.steps.gallery.static_files import (
    COLUMNS_FOLDER,
    PAGE_KEY,
    put_data,
    remove_others,
    require_own_folder,
)
from imagekiln.steps.gallery.static_rows import put_blocks
from imagekiln.steps.job.output import mime_type
from imagekiln.steps.runs.manifest import read_manifest
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.progress import NoProgress, Progress
from imagekiln.steps.runtime.sanitize import format_command
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import local_path
from imagekiln.steps.storage.store import Store
from imagekiln.steps.storage.uri import is_remote_uri

MAX_IMAGES = 1_000_000
VERSION = 1
MANIFESTS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class StaticGallery:
    """A complete gallery of files: the images and runs in it, and sentences on what it lacks."""

    uri: str
    images: int
    runs: int
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Contents:
    """What is written so far: where each block begins, and the keys of all files."""

    columns: StaticColumns
    images: int = 0
    starts: list[int] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    run_images: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def write_static_gallery(
    uri: str, target: str, progress: Progress | None = None, *, chunk_rows: int = CHUNK_ROWS
) -> StaticGallery:
    """Write a gallery of the run or the output at `uri` to the folder `target`.

    Raises Missing where there are no runs, BadInput where there are too many images or the folder
    has other files, TryAgain where storage fails or images are taken down: the same call goes on.
    """
    runs = find_gallery_runs(uri)
    _require_size(runs)
    store = open_store(target)
    require_own_folder(store)
    store.replace(PAGE_KEY, load_page("static").content)

    columns = index_columns(runs.columns)
    contents = _Contents(StaticColumns(store, columns, chunk_rows), problems=[*runs.problems])
    _write_runs(runs, store, contents, progress or NoProgress())
    put_data(store, _describe(runs, columns, store, contents))
    for names in contents.columns.names.values():
        contents.keys.update(f"{COLUMNS_FOLDER}/{name}" for name in names)
    remove_others(store, contents.keys)
    problems = tuple(contents.problems[:MAX_PROBLEMS])
    return StaticGallery(store.uri, contents.images, len(runs.runs), problems)


def _require_size(runs: GalleryRuns) -> None:
    images = sum(sum(run.source.shard_images) for run in runs.runs)
    if images > MAX_IMAGES:
        raise BadInput(
            f"{runs.uri}: has {images:,} images, and a static gallery at most {MAX_IMAGES:,}. "
            "Name one of its runs, or leave out --static."
        )


def _write_runs(runs: GalleryRuns, store: Store, contents: _Contents, progress: Progress) -> None:
    progress.start(sum(sum(run.source.shard_images) for run in runs.runs))
    try:
        for run in runs.runs:
            before = contents.images
            for shard, manifest in _iter_manifests(run, contents.problems):
                _write_manifest(run, shard, store, manifest, contents, progress)
            contents.run_images.append(contents.images - before)
        contents.columns.finish()
    finally:
        progress.close()


def _iter_manifests(run: GalleryRun, problems: list[str]) -> Iterator[tuple[int, pa.Table]]:
    """The numbered manifests of a run. One that is damaged costs its rows, and a sentence."""
    shard_images = run.source.shard_images

    def read(shard: int) -> pa.Table | KilnError:
        try:
            return read_manifest(run.run.store, shard, shard_images[shard])
        except TryAgain:
            raise
        except KilnError as error:
            return error

    for shard, manifest in enumerate(map_ordered(read, len(shard_images), MANIFESTS_AHEAD)):
        if isinstance(manifest, KilnError):
            problems.append(str(manifest))
        else:
            yield shard, manifest


def _write_manifest(
    run: GalleryRun,
    shard: int,
    store: Store,
    manifest: pa.Table,
    contents: _Contents,
    progress: Progress,
) -> None:
    for block in put_blocks(run, store, manifest):
        if block.problems:
            require_unchanged(run.source, shard, manifest)
        contents.starts.append(contents.images)
        contents.blocks.append(block.rows_name)
        contents.keys.update(block.keys)
        contents.problems += block.problems
        contents.images += block.images
        progress.add_drawn(block.images)
        progress.add_committed(block.images)
    contents.columns.add(run.run_id, manifest)


def _describe(
    runs: GalleryRuns, columns: dict[str, IndexColumn], store: Store, contents: _Contents
) -> dict[str, object]:
    """What the page reads first: what there is to choose from, and the names of all files."""
    images = contents.images
    indexed = IndexProgress(images, images, True, contents.problems[:MAX_PROBLEMS])
    return {
        "version": VERSION,
        "state": describe_choices(runs, columns, indexed),
        "runs": [
            {
                "images": images,
                "folder": relative_folder(run.run.store.uri, store.uri),
                "media_type": mime_type(run.run.plan.job.encoding),
                "command": format_command("reproduce", run.run.store.uri),
            }
            for run, images in zip(runs.runs, contents.run_images, strict=True)
        ],
        "block_starts": contents.starts,
        "blocks": contents.blocks,
        "chunk_rows": contents.columns.chunk_rows,
        "columns": [contents.columns.names.get(name, []) for name in columns],
        "nights": [
            _describe_night(night, contents.columns, columns) for night in read_nights(runs)
        ],
    }


def _describe_night(
    night: NightFigures, columns: StaticColumns, names: Iterable[str]
) -> dict[str, object]:
    means = [columns.mean(night.run_id, name) for name in names]
    return {**asdict(night), "means": means}


def relative_folder(folder: str, target: str) -> str | None:
    """The way from one folder to another in a URL, where both are in the same bucket or on a disk.

    None where no web server can show both.
    """
    if is_remote_uri(folder) != is_remote_uri(target):
        return None
    if not is_remote_uri(folder):
        way = os.path.relpath(local_path(folder).resolve(), local_path(target).resolve())
        return _quote_path(way)
    source_parts, target_parts = urlsplit(folder), urlsplit(target)
    if (source_parts.scheme, source_parts.netloc) != (target_parts.scheme, target_parts.netloc):
        return None
    return _quote_path(posixpath.relpath(source_parts.path or "/", target_parts.path or "/"))


def _quote_path(path: str) -> str:
    return "/".join(quote(part, safe="") for part in path.split("/"))
