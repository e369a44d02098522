"""Writes `prompts.parquet`, the sample prompts: `python datasets/scripts/make_prompts.py`.

Nothing here is random: with the same pyarrow, running it again gives the same bytes.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross")

# Each colour with six backgrounds that it stands out from, one for each shape.
BACKGROUNDS = {
    "red": ("white", "blue", "black", "cyan", "yellow", "pink"),
    "green": ("black", "purple", "blue", "pink", "yellow", "white"),
    "blue": ("yellow", "orange", "white", "pink", "cyan", "green"),
    "yellow": ("red", "black", "blue", "green", "cyan", "purple"),
    "orange": ("blue", "green", "black", "white", "cyan", "purple"),
    "purple": ("cyan", "yellow", "pink", "white", "orange", "green"),
    "pink": ("green", "purple", "blue", "red", "yellow", "black"),
    "cyan": ("red", "black", "yellow", "purple", "blue", "green"),
    "white": ("green", "red", "orange", "black", "purple", "blue"),
    "black": ("red", "white", "cyan", "orange", "yellow", "pink"),
}
COLOURS = tuple(BACKGROUNDS)
PLACES = ("on the left", "on the right", "at the top", "at the bottom")
PHRASES = (
    "{a_thing} on {a_background} background",
    "{thing} on {background}",
    "{a_thing}, {background} background",
    "a picture of {a_thing} on {a_background} background",
    "{background} background with {a_thing}",
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("negative_prompt", pa.string()),
        pa.field("seed", pa.int64()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("steps", pa.int32()),
        pa.field("guidance", pa.float64()),
        pa.field("images", pa.int32()),
        pa.field("collection", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt row but for its id; `None` leaves the choice to the job."""

    collection: str
    prompt: str
    negative_prompt: str | None = None
    seed: int | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    images: int | None = None


def article(words: str) -> str:
    """The words with "a" or "an" before them."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def sentence(number: int, *, shape: int, colour: int, size: str = "", place: str = "") -> str:
    """Describe one picture; the numbers, of any size, choose phrase, shape and colours in turn."""
    name = COLOURS[colour % len(COLOURS)]
    background = BACKGROUNDS[name][shape % len(SHAPES)]
    thing = " ".join(filter(None, (size, name, SHAPES[shape % len(SHAPES)], place)))
    return PHRASES[number % len(PHRASES)].format(
        thing=thing, a_thing=article(thing), background=background, a_background=article(background)
    )


def shapes() -> Iterator[Row]:
    """Every shape in every colour; one in five rows has a seed of its own."""
    for number in range(60):
        shape, colour = divmod(number, 10)
        prompt = sentence(number + shape, shape=shape, colour=colour)
        yield Row("shapes", prompt, seed=1000 + number if number % 5 == 0 else None)


def sizes() -> Iterator[Row]:
    """Small shapes and large ones."""
    for number in range(16):
        size = ("small", "large")[number % 2]
        yield Row("sizes", sentence(number, shape=number // 2, colour=3 * number, size=size))


def places() -> Iterator[Row]:
    """Shapes to one side, four small."""
    for number in range(16):
        size = "small" if number >= 12 else ""
        place = PLACES[number % 4]
        yield Row(
            "places", sentence(number, shape=number, colour=7 * number + 1, size=size, place=place)
        )


def sides() -> Iterator[Row]:
    """Pictures that are not square; in these the model knows no places."""
    for number in range(8):
        width, height = ((80, 64), (64, 80))[number % 2]
        prompt = sentence(number, shape=1 + number % 3, colour=number, size="small")
        yield Row("sides", prompt, width=width, height=height)


def series() -> Iterator[Row]:
    """Rows that ask for two, three or four pictures."""
    for number in range(8):
        place = PLACES[number // 2]
        prompt = sentence(number + 2, shape=number, colour=3 * number + 2, place=place)
        yield Row("series", prompt, images=2 + number % 3)


def without() -> Iterator[Row]:
    """Large shapes, with a small one of another kind to keep away from."""
    for number in range(6):
        prompt = sentence(number + 3, shape=number, colour=number + 4, size="large")
        yield Row("without", prompt, negative_prompt=f"small {SHAPES[(number + 4) % 6]}")


def settings() -> Iterator[Row]:
    """Rows with their own steps and guidance: quick and loose, or slow and strict."""
    for number in range(6):
        steps, guidance = ((8, 2.0), (30, 4.0))[number % 2]
        prompt = sentence(number + 1, shape=number + 3, colour=3 * number, size="large")
        yield Row("settings", prompt, steps=steps, guidance=guidance)


def table() -> pa.Table:
    """All the rows, numbered within their collection."""
    rows = []
    for collection in (shapes, sizes, places, sides, series, without, settings):
        for number, row in enumerate(collection(), start=1):
            rows.append({"id": f"{row.collection}-{number:03}", **asdict(row)})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


if __name__ == "__main__":
    pq.write_table(
        table(),
        Path(__file__).parents[1] / "prompts.parquet",
        compression="zstd",
        write_page_checksum=True,
        store_schema=False,
    )
