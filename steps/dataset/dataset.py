"""The images of runs as a dataset: every image that is ok, once, whichever retry made it.

The manifests say which images these are and where their bytes lie, so that parts are read by
ranges, and an image that was generated again is read from the part in which it is ok.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from imagekiln.steps.dataset.newest_images import NewestImages, find_newest_images
from imagekiln.steps.dataset.runs import (
    ManifestSlice,
    RunSource,
    find_runs,
    list_shards,
    manifest_slices,
    require_unchanged,
    unite_columns,
)
from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.manifest import read_manifest
from imagekiln.steps.runs.parts import image_column
from imagekiln.steps.runs.readback import read_images
from imagekiln.steps.runs.tables import IMAGE_FIELD
from imagekiln.steps.runtime.concurrency import map_ordered, thread_pool
from imagekiln.steps.storage import open_store

if TYPE_CHECKING:
    from imagekiln.steps.dataset.torch_dataset import TorchDataset

DEFAULT_BATCH_SIZE = 32
IMAGE_READERS = 8
MANIFEST_READERS = 4
IMAGE_COLUMN = IMAGE_FIELD.name
IS_LEFT = "imagekiln.is_left"


@dataclass(frozen=True, slots=True)
class Dataset:
    """The images that are ok of one run, or of all successful runs under an output.

    Opened by `imagekiln.dataset`; reads nothing but plans before it is iterated, and then holds one
    batch of images in memory. `columns` are the names of those that it gives, of all the columns
    that its manifests have, `filter` is an expression of pyarrow that its rows fulfill, and
    `newest` are the images that no newer run replaces.
    """

    uri: str
    runs: tuple[RunSource, ...] = field(repr=False)
    manifest_columns: pa.Schema = field(repr=False)
    columns: tuple[str, ...]
    filter: pc.Expression | None = None
    newest: NewestImages | None = field(default=None, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types. `image` is a struct of the file's bytes and its name."""
        known = pa.schema([IMAGE_FIELD, *self.manifest_columns])
        fields = [known.field(name) for name in self.columns]
        return pa.schema(fields)

    def count_rows(self) -> int:
        """Count the images, by their manifests."""
        return sum(rows.num_rows for _, rows in self.iter_rows())

    def iter_rows(self) -> Iterator[tuple[RunSource, pa.Table]]:
        """The rows of each shard's images with all columns of the manifest, and their run."""
        shards = list_shards(self.runs)

        def read(index: int) -> tuple[RunSource, pa.Table]:
            run, shard = shards[index]
            manifest = self._read_manifest(run, shard)
            rows = self._select_rows(manifest)
            return self.runs[run], rows

        return map_ordered(read, len(shards), MANIFEST_READERS)

    def to_batches(self, batch_size: int = DEFAULT_BATCH_SIZE) -> Iterator[pa.RecordBatch]:
        """The images as Arrow batches of at most `batch_size` rows, one after the other.

        Raises BadInput if the filter does not fit, or a run is damaged; TryAgain if
        storage fails, or images are taken down meanwhile.
        """
        return self.read_slices(self.slices(), batch_size)

    def to_hf(self, *, streaming: bool = False) -> Any:  # noqa: ANN401  # datasets has no types
        """The images as a dataset of Hugging Face, with `image` as its feature `Image`.

        A `datasets.Dataset`, which is copied to its cache on this disk, or with `streaming` a
        `datasets.IterableDataset`, which reads while it is iterated. Raises NotInstalled without
        the package `datasets`.
        """
        from imagekiln.steps.dataset.huggingface import to_huggingface

        return to_huggingface(self, streaming=streaming)

    def to_torch(self, *, decode: bool = True) -> "TorchDataset":
        """The images as an iterable dataset of PyTorch that gives one dictionary for each.

        `image` is a PIL image, or without `decode` the bytes of its file. The workers of a
        `DataLoader` and the ranks of a distributed job share the images, each reading some parts.
        Raises NotInstalled without PyTorch.
        """
        from imagekiln.steps.dataset.torch_dataset import TorchDataset

        return TorchDataset(self, decode=decode)

    def slices(self) -> tuple[ManifestSlice, ...]:
        """The pieces that can be read by themselves: the rows of one part each."""
        return tuple(manifest_slices(self.runs))

    def read_slices(
        self, slices: Iterable[ManifestSlice], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[pa.RecordBatch]:
        """The images of these slices in batches. Those of one shard should come together."""
        if batch_size < 1:
            raise BadInput(f"batch_size is {batch_size}. Choose 1 or more.")
        with thread_pool(IMAGE_READERS) as pool:
            by_shard = groupby(slices, lambda part: (part.run, part.shard))
            for (run, shard), group in by_shard:
                manifest = self._read_manifest(run, shard)
                for part in group:
                    part_rows = manifest.slice(part.start, part.rows)
                    rows = self._select_rows(part_rows)
                    for start in range(0, rows.num_rows, batch_size):
                        batch = rows.slice(start, batch_size)
                        source = self.runs[run]
                        try:
                            images = self._read_batch(source, batch, pool)
                        except BadInput as error:
                            require_unchanged(source, error)
                            raise
                        yield images

    def _read_batch(
        self, run: RunSource, rows: pa.Table, pool: ThreadPoolExecutor
    ) -> pa.RecordBatch:
        if IMAGE_COLUMN in self.columns:
            store = open_store(run.uri)
            contents = read_images(store, rows, pool)
            image_ids = rows["image_id"].to_pylist()
            names = [f"{image_id}{run.suffix}" for image_id in image_ids]
            rows = rows.append_column(IMAGE_FIELD, image_column(contents, names))
        chosen = rows.select(list(self.columns))
        (batch,) = chosen.combine_chunks().to_batches()
        return batch

    def _read_manifest(self, run: int, shard: int) -> pa.Table:
        """A manifest with the columns of all runs, null if this one lacks them.

        A column more tells the images that are ok and that no newer one replaces.
        """
        source = self.runs[run]
        store = open_store(source.uri)
        key = source.manifests[shard]
        images = source.shard_images[shard]
        manifest = read_manifest(store, key, images)
        is_left = pc.equal(manifest["status"], "ok")
        if self.newest is not None:
            is_left = self.newest.in_shard(run, shard, images)
        known = self.manifest_columns.names
        names = [name for name in manifest.column_names if name in known]
        empty = self.manifest_columns.empty_table()
        tables = [empty, manifest.select(names)]
        table = pa.concat_tables(tables, promote_options="default")
        return table.append_column(IS_LEFT, is_left)

    def _select_rows(self, manifest: pa.Table) -> pa.Table:
        """The rows of a manifest that are left and fulfill the filter."""
        rows = manifest.filter(manifest[IS_LEFT]).drop_columns([IS_LEFT])
        if self.filter is None:
            return rows
        try:
            return rows.filter(self.filter)
        except (pa.ArrowException, TypeError) as error:
            raise BadInput(f"filter {self.filter}: {error}. Correct the filter.") from error


def open_dataset(
    uri: str,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,  # noqa: A002  # as pyarrow.dataset calls it
    newest_by: str | None = None,
) -> Dataset:
    """The dataset of the run at `uri`, or of the successful runs under it.

    With `newest_by`, image_id or another column, each image comes from the newest run that holds
    it, and likewise each value of the column: this reads all manifests once. Raises Missing if
    there are none, Incomplete if one was not aggregated, BadInput if a column is unknown, no
    column is named or a run cannot be read, TryAgain.
    """
    runs = find_runs(uri)
    compared = [] if newest_by is None else [newest_by]
    manifest_columns = unite_columns(runs, None if columns is None else [*columns, *compared])
    fields = pa.schema([IMAGE_FIELD, *manifest_columns])
    known = fields.names
    chosen = known if columns is None else list(columns)
    if not chosen:  # batches of no column have no rows either
        raise BadInput(f"{uri}: no column is named. Name those to read, or leave out `columns`.")
    for name in (*chosen, *compared):
        if name not in known:
            raise BadInput(f"{uri}: has no column {name!r}. Its columns are {', '.join(known)}.")
    newest = None
    if newest_by is not None:
        kind = fields.field(newest_by).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            raise BadInput(
                f"column {newest_by!r}: is {kind}, and the newest image is found by text or "
                "integers. Choose another column, such as id."
            )
        newest = find_newest_images(uri, runs, newest_by)
    return Dataset(uri, runs, manifest_columns, tuple(chosen), filter, newest)
