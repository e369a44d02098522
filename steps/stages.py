"""The three stages of a shard, each a plain iterator: draw, encode, write. `generate` joins them."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from imagekiln.steps import checks, parts
from imagekiln.steps.encode import Encoded, Picture, encode
from imagekiln.steps.job import Encoding
from imagekiln.steps.judge import Judge
from imagekiln.steps.progress import Progress
from imagekiln.steps.rescue import Rescue
from imagekiln.steps.rows import image_rows, same_shape
from imagekiln.steps.shard import Part
from imagekiln.steps.stats import Seconds, timed
from imagekiln.steps.stop import COMMIT_SECONDS, Stop
from imagekiln.steps.storage import Store

ENCODERS = 4


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch of pictures, and the part that they belong to."""

    part: Part
    pictures: list[Picture]


@dataclass(frozen=True, slots=True)
class Finished:
    """A part's bytes, ready to be committed."""

    part: Part
    content: bytes


def draw(missing: Sequence[Part], rescue: Rescue, stop: Stop, seconds: Seconds) -> Iterator[Drawn]:
    """Draw every missing part, batch by batch. Raises Stopped where the part cannot be finished in time."""
    made, pace = 0, 0.0
    for part in missing:
        stop.check(math.inf)  # no new part once asked to stop
        left = part.rows.num_rows
        batches = (batch for rows in same_shape(image_rows(part.rows)) for batch in rescue.batches(rows))
        while left:
            stop.check(COMMIT_SECONDS + left * pace)
            with timed(seconds, "denoise"):
                pictures = next(batches)
            left, made = left - len(pictures), made + len(pictures)
            pace = seconds.denoise / made
            yield Drawn(part, pictures)


def finish(
    drawn: Iterator[Drawn], encoding: Encoding, progress: Progress, seconds: Seconds, judge: Judge
) -> Iterator[Finished]:
    """Encode and judge pictures, several at a time, and put them together to parts."""
    done: list[Encoded] = []
    with ThreadPoolExecutor(ENCODERS) as pool:
        for batch in drawn:
            with timed(seconds, "encode"):
                done += pool.map(partial(_encoded, batch.part, encoding, judge), batch.pictures)
            progress.made(len(batch.pictures))
            if len(done) == batch.part.rows.num_rows:
                with timed(seconds, "encode"):
                    content = parts.to_bytes(batch.part.rows, done)
                yield Finished(batch.part, content)
                done = []


def _encoded(part: Part, encoding: Encoding, judge: Judge, picture: Picture) -> Encoded:
    image = encode(picture, encoding)
    if image.status != "ok" or picture.rgb is None:
        return image
    return replace(image, quality=judge(picture.rgb, checks.row(part.rows, picture.place)))


def write(finished: Iterator[Finished], store: Store, progress: Progress, seconds: Seconds) -> Iterator[Part]:
    """Commit each part; yields it once it is there for good."""
    for each in finished:
        with timed(seconds, "write"):
            parts.commit(store, each.part.key, each.part.rows, each.content)
        progress.kept(each.part.rows.num_rows)
        yield each.part
