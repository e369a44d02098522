"""Prompt rows as strangers send them, any number of them, the same every time."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CHUNK_ROWS = 250_000
VOCABULARY = 50_000
FEWEST_WORDS, MOST_WORDS = 8, 20
OWN_SEED_SHARE = 0.03
DUPLICATE_SHARE = 0.005
BAD_SHARE = 0.001
DEFAULT_SIDE, DEFAULT_STEPS = 64, 20
SIDES = (64, 96, 128)
STEPS = (10, 20, 30)
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
Mask = npt.NDArray[np.bool_]


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
    first: pa.Table | None = None
    for start in range(0, rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, rows - start)
        ids = pc.binary_join_element_wise(
            "row", pa.array(range(start, start + count)).cast(pa.string()), "-"
        )
        sides, steps = (SIDES, STEPS) if several_shapes else ((DEFAULT_SIDE,), (DEFAULT_STEPS,))
        columns = [ids, _prompts(rng, words, count), _seeds(rng, count)]
        columns += [_half_null(rng, choices, count) for choices in (sides, sides, steps)]
        chunk = _with_bad(rng, pa.Table.from_arrays(columns, schema=SCHEMA))
        yield chunk if first is None else _with_duplicates(rng, chunk, first)
        first = first or chunk


def _vocabulary(rng: np.random.Generator) -> pa.Array:
    letters = rng.choice(np.frombuffer(b"eeeaaooiitnshrdlu", "S1"), (VOCABULARY, 10))
    lengths = rng.integers(2, 11, VOCABULARY)
    return pa.array(
        [b"".join(word[:length]).decode() for word, length in zip(letters, lengths, strict=True)]
    )


def _prompts(rng: np.random.Generator, words: pa.Array, count: int) -> pa.Array:
    lengths = rng.integers(FEWEST_WORDS, MOST_WORDS + 1, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    zipf = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    drawn = np.searchsorted(zipf, rng.random(offsets[-1]) * zipf[-1])
    return pc.binary_join(pa.ListArray.from_arrays(offsets, words.take(pa.array(drawn))), " ")


def _seeds(rng: np.random.Generator, count: int) -> pa.Array:
    return pa.array(rng.integers(0, 2**32, count), mask=rng.random(count) >= OWN_SEED_SHARE)


def _half_null(rng: np.random.Generator, choices: tuple[int, ...], count: int) -> pa.Array:
    """One of the choices for every other row, null for the rest."""
    return pa.array(rng.choice(choices, count), mask=rng.random(count) < 0.5)


def _with_bad(rng: np.random.Generator, chunk: pa.Table) -> pa.Table:
    share, places = BAD_SHARE / 3, rng.random(chunk.num_rows)
    invalid = {"prompt": pa.scalar(" "), "width": pa.scalar(63), "steps": pa.scalar(0)}
    for number, (name, value) in enumerate(invalid.items()):
        here = pa.array((places >= number * share) & (places < (number + 1) * share))
        place = SCHEMA.get_field_index(name)
        chunk = chunk.set_column(place, SCHEMA.field(name), pc.if_else(here, value, chunk[name]))
    return chunk


def _with_duplicates(rng: np.random.Generator, chunk: pa.Table, first: pa.Table) -> pa.Table:
    """The chunk with some of its rows replaced by rows of the first one."""
    places = np.arange(chunk.num_rows)
    chosen = np.flatnonzero(rng.random(chunk.num_rows) < DUPLICATE_SHARE)
    places[chosen] = chunk.num_rows + rng.integers(0, first.num_rows, len(chosen))
    return pa.concat_tables([chunk, first]).take(pa.array(places))
