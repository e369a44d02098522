"""The three stages of a shard, each a plain iterator: draw, encode, write. `generate` joins them."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from imagekiln.steps.encode import Encoded, Picture
from imagekiln.steps.formats import Format, Packed
from imagekiln.steps.progress import Progress
from imagekiln.steps.rescue import Rescue
from imagekiln.steps.rows import ImageRow, image_rows, same_shape
from imagekiln.steps.shard import Part
from imagekiln.steps.stats import Seconds, timed
from imagekiln.steps.stop import COMMIT_SECONDS, Stop
from imagekiln.steps.storage import Store

ENCODERS = 4
Encode = Callable[[Picture, ImageRow], Encoded]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch of pictures with the row of each, and the part that they belong to."""

    part: Part
    pictures: list[Picture]
    rows: list[ImageRow]


def draw(missing: Sequence[Part], rescue: Rescue, stop: Stop, seconds: Seconds) -> Iterator[Drawn]:
    """Draw every missing part, batch by batch. Raises Stopped where the part cannot be finished in time."""
    made, pace = 0, 0.0
    for part in missing:
        stop.check(math.inf)  # no new part once asked to stop
        left = part.rows.num_rows
        all_rows = image_rows(part.rows)
        batches = (batch for rows in same_shape(all_rows) for batch in rescue.batches(rows))
        while left:
            stop.check(COMMIT_SECONDS + left * pace)
            with timed(seconds, "denoise"):
                pictures = next(batches)
            left, made = left - len(pictures), made + len(pictures)
            pace = seconds.denoise / made
            yield Drawn(part, pictures, [all_rows[picture.place] for picture in pictures])


def finish(
    drawn: Iterator[Drawn], encode: Encode, layout: Format, progress: Progress, seconds: Seconds
) -> Iterator[Packed]:
    """Encode and judge pictures, several at a time, and put them together to parts."""
    done: list[Encoded] = []
    with ThreadPoolExecutor(ENCODERS) as pool:
        for batch in drawn:
            with timed(seconds, "encode"):
                done += pool.map(encode, batch.pictures, batch.rows)
            progress.made(len(batch.pictures))
            if len(done) == batch.part.rows.num_rows:
                with timed(seconds, "encode"):
                    packed = layout.pack(batch.part, done)
                yield packed
                done = []


def write(finished: Iterator[Packed], store: Store, progress: Progress, seconds: Seconds) -> Iterator[Part]:
    """Commit each part; yields it once it is there for good."""
    for each in finished:
        with timed(seconds, "write"):
            each.commit(store)
        progress.kept(each.part.rows.num_rows)
        yield each.part
