"""What hours of work leave behind in one process: memory, threads, descriptors, temporary files.

    python -m tests.bench.soak shards --model shapes --minutes 90
    python -m tests.bench.soak nights --store s3 --minutes 90

`shards` is the process that draws longest: with one loaded model it makes shard after shard, as
`imagekiln run` and each of its workers do. `nights` plans, makes, aggregates, verifies and cleans
up one run after the other with `skip_existing`, as a program that imports `imagekiln` may for
months; a run is removed a few nights later. Rows mix samplers, sizes, steps, guidance, LoRAs and
input images, and some fail. A line a minute says what the process holds; the end, by how much that
grew with the images, once the first third had warmed it up, and what only waits to be collected.
"""

import argparse
import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import CDLL
from dataclasses import astuple, dataclass
from itertools import count
from pathlib import Path

import fsspec
import numpy as np

sys.path.append(str(Path(__file__).parents[2]))

import imagekiln
from imagekiln.steps.generate.step import LazyDenoiser, generate_shard
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.samplers import SAMPLERS
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import runs
from tests.bench.measure import MIB, scratch_folder, table
from tests.pictures import half, noise
from tests.s3 import s3_server

LOOKS = 60  # settings of rows, so that several rows share a batch
PICTURES = 20
SHARDS = 60
SHARD_IMAGES = 32
NEW_ROWS = 32  # of a night, beside as many of the night before
NIGHTS_KEPT = 5
ABANDONED_EVERY = 7  # nights, of which one is planned and never made
FORMATS = ("parquet", "webdataset", "files")
ENCODINGS = ("png", "jpeg", "webp")
HEADER = ("minutes", "images", "MiB", "threads", "descriptors", "temporary", "Python objects")
WARM_UP = 1 / 3  # of the readings


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a job names it, the side of its images, and the settings its rows pick from."""

    name: str
    settings: dict[str, object]
    side: int
    loras: tuple[str | None, ...] = (None,)
    adapters: tuple[str, ...] = ()  # the columns whose images they read


def named_model(name: str) -> Model:
    """The bundled model, or one of `tests.families` with all that it takes."""
    if name == "shapes":
        return Model(name, {"id": "bundled:shapes", "dtype": "float32"}, side=64)

    from tests import histories  # imports every family, which the bundled model needs none of

    columns = {"control_image": histories.CONTROLNETS, "reference_image": histories.IP_ADAPTERS}
    loras = (None, "a:0.8", "a:-0.5,b:0.8") if histories.supports_loras(name) else (None,)
    return Model(
        name,
        histories.model_settings(name),
        histories.side_of(name),
        loras,
        tuple(column for column, kinds in columns.items() if name in kinds),
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """What the process holds after so many images."""

    minutes: float
    images: int
    mib: float
    threads: int
    descriptors: int
    temporary: int
    objects: int


class Watch:
    """Reads once a minute what this process holds."""

    def __init__(self, minutes: float) -> None:
        """Begin to count."""
        self.readings: list[Reading] = []
        self.images = 0
        self._began = time.monotonic()
        self._minutes = minutes
        print("  ".join(HEADER), flush=True)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._elapsed() >= self._minutes

    def add(self, images: int) -> None:
        """So many more images were made. Print a line if it is time to."""
        self.images += images
        if self.readings and self._elapsed() < self.readings[-1].minutes + 1:
            return
        reading = read_process(self._elapsed(), self.images)
        self.readings.append(reading)
        print(table(HEADER, [cells(reading)]).splitlines()[1], flush=True)

    def collect(self) -> None:
        """Print what is left once all garbage is collected."""
        gc.collect()
        reading = read_process(self._elapsed(), self.images)
        print(f"Collected: {reading.mib:.1f} MiB, {reading.objects} Python objects")
        if sys.platform == "linux":  # what the allocator holds for later is no leak
            CDLL(None).malloc_trim(0)
            print(f"Trimmed: {read_process(self._elapsed(), self.images).mib:.1f} MiB")

    def _elapsed(self) -> float:
        return (time.monotonic() - self._began) / 60


def read_process(minutes: float, images: int) -> Reading:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Reading(
        minutes,
        images,
        pages * os.sysconf("SC_PAGE_SIZE") / MIB,
        sum(1 for _ in Path("/proc/self/task").iterdir()),
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        sum(1 for _ in Path(tempfile.gettempdir()).rglob("*")),
        len(gc.get_objects()),
    )


def cells(reading: Reading) -> tuple[str, ...]:
    """A reading as the cells of a row."""
    minutes, images, mib, *counts = astuple(reading)
    return (f"{minutes:.1f}", str(images), f"{mib:.1f}", *map(str, counts))


def slopes(readings: Sequence[Reading]) -> Iterator[str]:
    """By how much each figure grows in 1,000 images, with its standard error."""
    warm = readings[int(len(readings) * WARM_UP) :]
    if len(warm) < 4:  # a line and its error need as many
        yield "too few readings for a slope"
        return
    values = np.array([astuple(reading) for reading in warm], float)
    thousands = values[:, 1] / 1000
    for name, column in zip(HEADER[2:], values[:, 2:].T, strict=True):
        (slope, _), covariance = np.polyfit(thousands, column, 1, cov=True)
        error = np.sqrt(covariance[0, 0])
        yield f"{name}: {slope:+.3f} ± {error:.3f} in 1,000 images, from {column[0]:.0f}"


class Rows:
    """Rows of one model, each with one of a fixed number of random settings."""

    def __init__(self, folder: Path, model: Model, seed: int) -> None:
        """Write pictures to the folder, and draw the settings."""
        self._random = random.Random(seed)  # noqa: S311  # no secret
        self._model = model
        self._sources = [folder / f"{number}.png" for number in range(PICTURES)]
        self._mask = folder / "mask.png"
        for number, path in enumerate(self._sources):
            path.write_bytes(noise(number))
        self._mask.write_bytes(half())
        self._looks = [self._look() for _ in range(LOOKS - 1)]
        self._looks.append(self._look() | runs.UNDRAWABLE)

    def make(self, first: int, rows: int) -> list[dict[str, object]]:
        """So many rows, the first of them with this number. A number has always the same row."""
        return [self._row(number) for number in range(first, first + rows)]

    def _row(self, number: int) -> dict[str, object]:
        look = self._looks[number % LOOKS]
        pictures: dict[str, object] = {
            column: str(self._sources[number % PICTURES])
            for column in ("source_image", "control_image", "reference_image")
            if column in look
        }
        prompt = f"a red circle beside {number} blue squares"
        return {**look, **pictures, "prompt": prompt, "seed": number}

    def _look(self) -> dict[str, object]:
        pick = self._random.choice
        look: dict[str, object] = {
            "width": self._model.side * pick((1, 1, 2)),
            "height": self._model.side,
            "steps": pick((2, 3, 4)),
            "guidance": pick((0.0, 3.0, 7.5)),
            "sampler": pick(SAMPLERS),
            "negative_prompt": pick(("", "large")),
            "loras": pick(self._model.loras),
        }
        look |= pick(({}, {"source_image": "", "strength": 0.7}))
        if "source_image" in look:
            look |= pick(({}, {"mask_image": str(self._mask)}))
        for column in self._model.adapters:
            look |= pick(({}, {column: ""}))
        return look


def make_job(
    folder: Path, output: str, model: Model, rows: list[dict[str, object]], **settings: object
) -> Job:
    """A job of these rows."""
    columns = dict.fromkeys(name for row in rows for name in row)
    filled = [{name: row.get(name) for name in columns} for row in rows]
    plain: dict[str, object] = {
        "name": model.name,
        "model": model.settings,
        "limits": {"failed_share": 1.0, "rejected_share": 1.0},
        "shard": {"images": SHARD_IMAGES},
    }
    prompts = runs.write_prompts(folder / "prompts.parquet", filled)
    return runs.job(prompts, output, **plain | settings)


def soak_shards(watch: Watch, folder: Path, output: str, model: Model, seed: int) -> None:
    """Make shard after shard with one model. When all are made, their parts are removed."""
    rows = Rows(folder, model, seed)
    result = imagekiln.plan(
        make_job(folder, output, model, rows.make(0, SHARDS * SHARD_IMAGES), run_id="soak")
    )
    store = open_store(result.uri)
    numbers = list(range(len(result.plan.shards)))
    order = random.Random(seed)  # noqa: S311  # no secret
    denoiser = LazyDenoiser(store, result.plan)
    while True:
        order.shuffle(numbers)
        for number in numbers:
            generate_shard(store, result.plan, number, denoiser, NoProgress(), Stop())
            watch.add(result.plan.shards[number].images)
            if watch.is_over:
                return
        for made in ("images", "stats"):
            remove_objects(store, made)


def remove_objects(store: Store, folder: str) -> None:
    """Remove what lies in a folder."""
    for info in list(store.list_folder(folder)):
        store.remove(info.key)


def soak_nights(watch: Watch, folder: Path, output: str, model: Model, seed: int) -> None:
    """Run one night after the other."""
    rows = Rows(folder, model, seed)
    finished: list[str] = []
    for night in count():
        job = make_job(
            folder,
            output,
            model,
            rows.make(night * NEW_ROWS, 2 * NEW_ROWS),
            run_id=f"night-{night:06d}",
            skip_existing=True,
            format=FORMATS[night % len(FORMATS)],
            encoding={"kind": ENCODINGS[night // len(FORMATS) % len(ENCODINGS)]},
        )
        images = run_night(job, abandoned=night % ABANDONED_EVERY == ABANDONED_EVERY - 1)
        imagekiln.gc(output, older_than=0.0, remove=True)
        finished.append(f"{output}/{job.run_id}")
        if len(finished) > NIGHTS_KEPT:
            remove_run(finished.pop(0))
        watch.add(images)
        if watch.is_over:
            return


def run_night(job: Job, *, abandoned: bool) -> int:
    """Plan a run and, unless it is abandoned, finish and check it; returns its images."""
    result = imagekiln.plan(job)
    if abandoned:
        return 0
    for number in range(len(result.plan.shards)):
        imagekiln.generate(result.uri, number, progress=False)
    imagekiln.aggregate(result.uri)
    imagekiln.verify(result.uri)
    return result.plan.counts.images


def remove_run(uri: str) -> None:
    """Remove a run with all that lies in it, if `gc` has left it."""
    files, path = fsspec.core.url_to_fs(uri)
    if files.exists(path):
        files.rm(path, recursive=True)


@contextmanager
def output_uri(store: str, folder: Path) -> Iterator[str]:
    """Where runs are written, on the disk or on a server of our own, while the block runs."""
    if store == "disk":
        yield str(folder / "out")
        return
    data = folder / "server"
    data.mkdir()
    with s3_server(data) as server:
        os.environ.update(server.environment())
        yield f"s3://{server.make_bucket()}/out"


def main() -> None:
    """Soak, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("loop", choices=["shards", "nights"])
    parser.add_argument("--model", default="shapes", help="or one of tests.families, such as sd")
    parser.add_argument("--store", choices=["disk", "s3"], default="disk")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    loop = soak_shards if options.loop == "shards" else soak_nights
    with scratch_folder() as folder:
        tempfile.tempdir = str(folder / "temporary")  # our own, to count what is left in it
        Path(tempfile.tempdir).mkdir()
        watch = Watch(options.minutes)
        with output_uri(options.store, folder) as output:
            loop(watch, folder, output, named_model(options.model), options.seed)
        watch.collect()
    print(*slopes(watch.readings), sep="\n")


if __name__ == "__main__":
    main()
