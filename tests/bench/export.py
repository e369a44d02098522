"""Time and memory of an export, beside pyarrow copying the same parts without looking at them.

Example: python -m tests.bench.export --sizes 100_000x2000 1_000_000x100
"""

import argparse
import hashlib
import math
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.export.settings import ExportSettings, read_settings
from imagekiln.steps.export.step import export
from imagekiln.steps.imaging.codecs import encode_image
from imagekiln.steps.job.output import Png
from imagekiln.steps.runs.image import EncodedImage
from imagekiln.steps.runs.parquet_format import image_table_options, part_to_parquet
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from tests.bench.aggregate import write_run
from tests.bench.measure import Usage, machine, measure_usage, scratch_folder, table, usage_cells

FILE_SIZE = "100MB"
HEADER = ("images", "bytes", "", "seconds", "CPU seconds", "images/s", "share of copy", "peak MiB")


def write_shard(size: int, uri: str, number: int) -> None:
    """Write the parts of one shard: pictures of about `size` bytes, which end with their ids."""
    store = open_store(uri)
    side = max(1, math.isqrt(size // 3))
    noise = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    picture = encode_image(noise, Png())
    for part in read_shard(store, load_plan(store), number):
        images = []
        for place, image_id in enumerate(part.rows["image_id"].to_pylist()):
            content = picture + bytes.fromhex(image_id)
            digest = hashlib.sha256(content).hexdigest()
            images.append(EncodedImage(place, "ok", None, content, digest, digest, ".png"))
        Path(store.uri_of(part.key)).write_bytes(part_to_parquet(part.rows, images))


def copy_parts(run: Path, target: Path) -> None:
    """Copy all parts with pyarrow, into files of the same size."""
    size = read_settings(file_size=FILE_SIZE).file_bytes
    target.mkdir()
    paths = sorted((run / "images").iterdir())
    schema = pq.read_schema(paths[0])
    remaining = list(reversed(paths))
    while remaining:
        file = target / f"{len(remaining)}.parquet"
        with pq.ParquetWriter(file, schema, **image_table_options(schema)) as writer:
            while remaining and file.stat().st_size < size:
                part = pq.read_table(remaining.pop(), page_checksum_verification=True)
                writer.write_table(part.cast(schema))


def export_run(run: Path, target: Path, settings: ExportSettings) -> None:
    """Export the run."""
    export(str(run), str(target), settings)


def bench(images: int, size: int) -> list[tuple[str, ...]]:
    """Export a run of so many images of this size, and copy its parts, each in its own process."""
    with scratch_folder() as folder:
        measure_usage(write_run, folder, images, partial(write_shard, size))
        run = folder / "run"
        measure_usage(aggregate, str(run))
        count = len(pq.read_table(run / "manifest", columns=["byte_size"]))
        copied = measure_usage(copy_parts, run, folder / "copy")
        lines = [_line(count, size, "copy", copied, copied)]
        for kind in ("parquet", "webdataset"):
            settings = read_settings(kind, FILE_SIZE)
            took = measure_usage(export_run, run, folder / kind, settings)
            lines.append(_line(count, size, kind, took, copied))
        return lines


def _line(images: int, size: int, what: str, took: Usage, copied: Usage) -> tuple[str, ...]:
    return (f"{images:,}", f"{size:,}", what, *usage_cells(images, took, copied))


def main() -> None:
    """Print the machine and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["100_000x2000", "1_000_000x100"])
    options = parser.parse_args()
    print(machine())
    pairs = [map(int, text.split("x")) for text in options.sizes]
    print(table(HEADER, [line for images, size in pairs for line in bench(images, size)]))


if __name__ == "__main__":
    main()
