"""Prompt rows as strangers send them, any number of them, the same every time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CHUNK_ROWS = 250_000
VOCABULARY = 50_000
FEWEST_WORDS = 8
MOST_WORDS = 20
SHORTEST_WORD = 2  # letters
LONGEST_WORD = 10  # letters
LETTERS = np.frombuffer(b"eeeaaooiitnshrdlu", "S1")
OWN_SEED_SHARE = 0.03
DUPLICATE_SHARE = 0.005
BAD_SHARE = 0.001
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", pa.string()),
        ("seed", pa.int64()),
        ("width", pa.int64()),
        ("height", pa.int64()),
        ("steps", pa.int64()),
    ]
)
INVALID = {"prompt": pa.scalar(" "), "width": pa.scalar(63), "steps": pa.scalar(0)}


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sides and steps that rows ask for."""

    sides: tuple[int, ...]
    steps: tuple[int, ...]


ONE_SHAPE = Shapes(sides=(64,), steps=(20,))
SEVERAL_SHAPES = Shapes(sides=(64, 96, 128), steps=(10, 20, 30))


def write_prompts(path: Path, rows: int, several_shapes: bool) -> None:
    """Write prompt rows as one Parquet file."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for chunk in prompt_rows(rows, several_shapes):
            writer.write_table(chunk)


def prompt_rows(rows: int, several_shapes: bool) -> Iterator[pa.Table]:
    """Prompts of Zipf-distributed words with ids, some of them with seeds and sizes.

    A few are invalid, and a few are duplicates.
    """
    rng = np.random.default_rng(7)
    words = _vocabulary(rng)
    shapes = SEVERAL_SHAPES if several_shapes else ONE_SHAPE
    first: pa.Table | None = None
    for start in range(0, rows, CHUNK_ROWS):
        end = min(start + CHUNK_ROWS, rows)
        valid = _valid_rows(rng, words, range(start, end), shapes)
        chunk = _with_bad(rng, valid)
        if first is None:
            first = chunk
            yield chunk
        else:
            yield _with_duplicates(rng, chunk, first)


def _valid_rows(
    rng: np.random.Generator, words: pa.Array, numbers: range, shapes: Shapes
) -> pa.Table:
    count = len(numbers)
    columns = {
        "id": _row_ids(numbers),
        "prompt": _prompts(rng, words, count),
        "seed": _seeds(rng, count),
        "width": _half_null(rng, shapes.sides, count),
        "height": _half_null(rng, shapes.sides, count),
        "steps": _half_null(rng, shapes.steps, count),
    }
    return pa.table(columns, schema=SCHEMA)


def _row_ids(numbers: range) -> pa.Array:
    places = pa.array(numbers)
    texts = places.cast(pa.string())
    return pc.binary_join_element_wise("row", texts, "-")


def _vocabulary(rng: np.random.Generator) -> pa.Array:
    shape = (VOCABULARY, LONGEST_WORD)
    letters = rng.choice(LETTERS, shape)
    lengths = rng.integers(
        low=SHORTEST_WORD,
        high=LONGEST_WORD,
        size=VOCABULARY,
        endpoint=True,
    )
    words: list[str] = []
    for word, length in zip(letters, lengths, strict=True):
        content = b"".join(word[:length])
        words.append(content.decode())
    return pa.array(words)


def _prompts(rng: np.random.Generator, words: pa.Array, count: int) -> pa.Array:
    lengths = rng.integers(
        low=FEWEST_WORDS,
        high=MOST_WORDS,
        size=count,
        endpoint=True,
    )
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    total = int(offsets[-1])
    indices = _zipf_indices(rng, total)
    drawn_words = words.take(indices)
    lists = pa.ListArray.from_arrays(offsets, drawn_words)
    return pc.binary_join(lists, " ")


def _zipf_indices(rng: np.random.Generator, count: int) -> pa.Array:
    """Indices of words, of which the word of rank n comes with a weight of 1/n."""
    ranks = np.arange(1, VOCABULARY + 1)
    weights = np.cumsum(1 / ranks)
    points = weights[-1] * rng.random(count)
    indices = np.searchsorted(weights, points)
    return pa.array(indices)


def _seeds(rng: np.random.Generator, count: int) -> pa.Array:
    """Seeds for a small share of rows, null for the rest."""
    seeds = rng.integers(0, 2**32, count)
    is_null = rng.random(count) >= OWN_SEED_SHARE
    return pa.array(seeds, mask=is_null)


def _half_null(rng: np.random.Generator, choices: tuple[int, ...], count: int) -> pa.Array:
    """One of the choices for every other row, null for the rest."""
    values = rng.choice(choices, count)
    is_null = rng.random(count) < 0.5
    return pa.array(values, mask=is_null)


def _with_bad(rng: np.random.Generator, chunk: pa.Table) -> pa.Table:
    """The chunk with an invalid value in a few rows, equally many in each of three columns."""
    share = BAD_SHARE / len(INVALID)
    points = rng.random(chunk.num_rows)
    for number, (name, value) in enumerate(INVALID.items()):
        low = number * share
        high = (number + 1) * share
        is_bad = (points >= low) & (points < high)
        column = pc.if_else(pa.array(is_bad), value, chunk[name])
        chunk = chunk.set_column(
            SCHEMA.get_field_index(name),
            SCHEMA.field(name),
            column,
        )
    return chunk


def _with_duplicates(rng: np.random.Generator, chunk: pa.Table, first: pa.Table) -> pa.Table:
    """The chunk with some of its rows replaced by rows of the first one."""
    count = chunk.num_rows
    is_duplicate = rng.random(count) < DUPLICATE_SHARE
    replaced = np.flatnonzero(is_duplicate)
    sources = rng.integers(0, first.num_rows, len(replaced))

    indices = np.arange(count)
    indices[replaced] = count + sources
    both = pa.concat_tables([chunk, first])
    return both.take(pa.array(indices))
