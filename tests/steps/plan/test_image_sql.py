import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

import duckdb
import pyarrow as pa

from imagekiln.steps.job.columns import (
    IDENTITY_COLUMNS,
    OPTIONAL_IDENTITY_COLUMNS,
)
from imagekiln.steps.plan.image_sql import image_id_sql, model_key, seed_sql
from imagekiln.steps.runs.image import ImageParameters
from tests.identity import compute_image_id

KEY = model_key("sha256:" + "0" * 64, "bfloat16")
PLAIN = ImageParameters("a lighthouse at dusk", "", 7, 1024, 1024, 30, 5.0, "default")
QUOTED = ImageParameters(
    "Ein Schlo\u00df \N{EUROPEAN CASTLE} im Nebel",
    'blurry, "ugly"',
    2**63 - 10_001,
    64,
    128,
    1,
    0.1,
    "euler",
)
ODD = ImageParameters(
    "nul \0 and 'quotes'; {{braces}}\n\u05e2",
    "x" * 10,
    0,
    8,
    65_536,
    1000,
    1e-07,
    "dpmpp_2m_karras",
)
TYPES = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "image": pa.string(),
    "images": pa.string(),
}
COLUMNS = {column.name: TYPES[column.kind] for column in IDENTITY_COLUMNS}


@dataclass(frozen=True, slots=True)
class SeedSource:
    """What a seed follows from, besides the pixels' own settings."""

    id: str | None
    row_seed: int | None
    image_index: int


def _table(rows: Sequence[ImageParameters], sources: Sequence[SeedSource] = ()) -> pa.Table:
    columns = {
        name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in COLUMNS.items()
    }
    others = (
        {"id": pa.string(), "row_seed": pa.int64(), "image_index": pa.int64()} if sources else {}
    )
    return pa.table(
        columns
        | {
            name: pa.array([getattr(each, name) for each in sources], kind)
            for name, kind in others.items()
        }
    )


def _evaluate_sql(expression: str, table: pa.Table) -> list[object]:
    with duckdb.connect() as database:
        database.register("images", table)
        return [
            value for (value,) in database.execute(f"SELECT {expression} FROM images").fetchall()
        ]


def _seed(job_seed: int, row: ImageParameters, source: SeedSource) -> int:
    """The seed of an image as the documentation has it, worked out one by one."""
    if source.row_seed is not None:
        return source.row_seed + source.image_index
    texts = "|".join(f"{len(text.encode())}:{text}" for text in (row.prompt, row.negative_prompt))
    settings = f"{texts}|-|{row.width}x{row.height}|{row.steps}|{row.guidance}|{row.sampler}"
    more = ((name, getattr(row, name)) for name in OPTIONAL_IDENTITY_COLUMNS)
    settings += "".join(
        f"|{name}:{len(str(value))}:{value}" for name, value in more if value is not None
    )
    who = f"text|{settings}" if source.id is None else f"id|{source.id}"
    return int(
        hashlib.sha256(f"{job_seed}|{source.image_index}|{who}".encode()).hexdigest()[:13], 16
    )


def test_ids_are_what_they_always_were() -> None:
    assert KEY == "285cc6868b57afd6cacfbce65568afec0b3ad7217394deb2b0871d6cead7b4c7"
    expected = [
        "f57bba5dd5d1a597dab22226bf80e655",
        "76b79aa0fbc59a09be65634737facf37",
        "d3cec40d74c736fd1e8937f0ee78c0d1",
    ]
    assert [compute_image_id(KEY, row) for row in (PLAIN, QUOTED, ODD)] == expected
    assert _evaluate_sql(image_id_sql(KEY), _table([PLAIN, QUOTED, ODD])) == expected


def test_seeds_are_what_they_always_were() -> None:
    sources = [SeedSource(None, None, 0), SeedSource("row-1", None, 3), SeedSource("row-1", 41, 3)]
    expected = [
        _seed(7, row, each) for row, each in zip((PLAIN, QUOTED, ODD), sources, strict=True)
    ]
    assert expected == [4491800443580706, 1290661992970714, 44]
    assert _evaluate_sql(seed_sql(7), _table([PLAIN, QUOTED, ODD], sources)) == expected


def test_no_two_rows_have_one_id_however_their_texts_run_together() -> None:
    texts = ["", "a", "|", ":", "1:a", "1:a|0:", "0:|0:", "a|", "0", "1", "\u00e9", "\0"]
    pairs = [*itertools.product(texts, repeat=2)]
    rows = [
        replace(PLAIN, prompt=prompt, negative_prompt=negative, seed=seed, steps=steps)
        for (prompt, negative), seed, steps in itertools.product(pairs, [0, 1, 11], [1, 11])
    ]
    assert len({compute_image_id(KEY, row) for row in rows}) == len(rows)


def test_every_setting_changes_the_id() -> None:
    settings = ("another", "ugly", 8, 1032, 1016, 31, 5.5, "euler", "style:1.0", 0.5)
    digests = ("a" * 64, "a" * 64, "a" * 64, "a" * 64)
    others = ImageParameters(*settings, *digests, 0.7)
    changed = [
        replace(PLAIN, **{field.name: getattr(others, field.name)})
        for field in fields(ImageParameters)
    ]
    ids = {compute_image_id(KEY, row) for row in [PLAIN, *changed]}
    assert len(ids) == 1 + len(astuple(PLAIN))
