"""Dataset of runs: each image that is ok, once, from the run or from any of its retries.

The manifests list the images and the locations of their bytes. Parts are read by ranges, and an
image that was retried is read from the part in which it is ok.
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
    """Images that are ok of one run, or of all successful runs in an output.

    Opened by `imagekiln.dataset`. Only plans and commits are read before iteration, and one batch
    of images is in memory during it. `columns` are the names of the columns to return, out of all
    columns of the manifests. `filter` is a pyarrow expression for the rows to return, and `newest`
    selects the images that no newer run replaces.
    """

    uri: str
    runs: tuple[RunSource, ...] = field(repr=False)
    manifest_columns: pa.Schema = field(repr=False)
    columns: tuple[str, ...]
    filter: pc.Expression | None = None
    newest: NewestImages | None = field(default=None, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types. `image` is a struct of the file's bytes and name."""
        known = pa.schema([IMAGE_FIELD, *self.manifest_columns])
        fields = [known.field(name) for name in self.columns]
        return pa.schema(fields)

    def count_rows(self) -> int:
        """Count the images by reading the manifests."""
        return sum(rows.num_rows for _, rows in self.iter_rows())

    def iter_rows(self) -> Iterator[tuple[RunSource, pa.Table]]:
        """Yield the rows of each shard's images with all columns of the manifest, and their run."""
        shards = list_shards(self.runs)

        def read(index: int) -> tuple[RunSource, pa.Table]:
            run, shard = shards[index]
            manifest = self._read_manifest(run, shard)
            rows = self._select_rows(manifest)
            return self.runs[run], rows

        return map_ordered(read, len(shards), MANIFEST_READERS)

    def to_batches(self, batch_size: int = DEFAULT_BATCH_SIZE) -> Iterator[pa.RecordBatch]:
        """Yield the images as Arrow batches of at most `batch_size` rows.

        Raises BadInput if the filter is invalid or a run is damaged, TryAgain if storage fails or
        images are taken down meanwhile.
        """
        return self.read_slices(self.slices(), batch_size)

    def to_hf(self, *, streaming: bool = False) -> Any:  # noqa: ANN401  # datasets has no types
        """Convert to a Hugging Face dataset, with `image` as its `Image` feature.

        Returns a `datasets.Dataset`, which is copied to its cache on the local disk. With
        `streaming`, returns a `datasets.IterableDataset`, which reads during iteration. Raises
        NotInstalled without the package `datasets`.
        """
        from imagekiln.steps.dataset.huggingface import to_huggingface

        return to_huggingface(self, streaming=streaming)

    def to_torch(self, *, decode: bool = True) -> "TorchDataset":
        """Convert to an iterable PyTorch dataset of dictionaries, one for each image.

        `image` is a PIL image, or without `decode` the bytes of its file. The workers of a
        `DataLoader` and the ranks of a distributed job share the images, each reading some parts.
        Raises NotInstalled without PyTorch.
        """
        from imagekiln.steps.dataset.torch_dataset import TorchDataset

        return TorchDataset(self, decode=decode)

    def slices(self) -> tuple[ManifestSlice, ...]:
        """List the slices that can be read independently: the rows of one part each."""
        return tuple(manifest_slices(self.runs))

    def read_slices(
        self, slices: Iterable[ManifestSlice], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[pa.RecordBatch]:
        """Yield the images of these slices in batches. Slices of one shard should be adjacent."""
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
        """Read a manifest with the columns of all runs, null if this run lacks them.

        The added column IS_LEFT is true for images that are ok and not replaced by a newer run.
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
        """Return the rows of a manifest that are left and match the filter."""
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
    filter: pc.Expression | None = None,  # noqa: A002  # named as in pyarrow.dataset
    newest_by: str | None = None,
) -> Dataset:
    """Open the dataset of the run at `uri`, or of the successful runs under it.

    With `newest_by`, which is image_id or another column, each image and each value of the column
    comes from the newest run that has it. This reads all manifests once. Raises Missing if there
    are no runs, Incomplete if one was not aggregated, BadInput if a column is unknown, no column is
    named or a run cannot be read, TryAgain.
    """
    runs = find_runs(uri)
    compared = [] if newest_by is None else [newest_by]
    manifest_columns = unite_columns(runs, None if columns is None else [*columns, *compared])
    fields = pa.schema([IMAGE_FIELD, *manifest_columns])
    known = fields.names
    chosen = known if columns is None else list(columns)
    if not chosen:  # batches without columns would have no rows
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
