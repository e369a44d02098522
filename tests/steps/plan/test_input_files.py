"""Input files are found, hashed and read, whatever wrote them."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.input_files import input_fingerprint, read_input_files
from imagekiln.steps.plan.source_files import gather_sources
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.storage import open_store
from tests.jobs import image_rows, job, plan, rejected, write
from tests.texts import HOSTILE


def _prompts(folder: Path, **settings: object) -> list[str]:
    prompts: list[str] = image_rows(plan(folder, **settings))["prompt"].to_pylist()
    return prompts


def _error_message(
    folder: Path, columns: dict[str, object] | None = None, **settings: object
) -> str:
    with pytest.raises(BadInput) as caught:
        plan(folder, columns, **settings)
    assert not (folder / "out").exists(), "what is refused leaves nothing behind"
    return str(caught.value).replace(f"{folder}/", "")


def test_every_column_reaches_the_image_rows(tmp_path: Path) -> None:
    row = {
        "prompt": "a",
        "id": "x",
        "negative_prompt": "b",
        "seed": 5,
        "width": 64,
        "height": 72,
        "steps": 3,
        "guidance": 2.5,
        "sampler": "euler",
    }
    planned = plan(tmp_path, {**{name: [value] for name, value in row.items()}, "images": [2]})
    first, second = image_rows(planned).to_pylist()
    assert {name: first[name] for name in row} == row
    assert (first["image_index"], second["image_index"], second["seed"]) == (0, 1, 6)


def test_absent_columns_and_nulls_mean_the_jobs_defaults(tmp_path: Path) -> None:
    defaults = {
        "steps": 4,
        "guidance": 1.5,
        "width": 72,
        "height": 64,
        "negative_prompt": "it's bad",
        "sampler": "ddim",
        "images_per_prompt": 2,
    }
    rows = image_rows(
        plan(tmp_path, {"prompt": ["a"], "steps": pa.nulls(1)}, defaults=defaults)
    ).to_pylist()
    del defaults["images_per_prompt"]
    assert len(rows) == 2
    assert [{name: row[name] for name in defaults} for row in rows] == [defaults] * 2


def test_hostile_text_goes_through_planning_unchanged(tmp_path: Path) -> None:
    texts = [*HOSTILE, "\N{FIRE}x" * 2000]
    columns = {
        "prompt": texts,
        "negative_prompt": texts[::-1],
        "id": [f"{text[:100]}{n}" for n, text in enumerate(texts)],
    }
    rows = image_rows(plan(tmp_path, columns))
    assert rows.num_rows == len(texts)
    assert {name: rows[name].to_pylist() for name in columns} == columns


def test_numbers_written_by_pandas_with_gaps_are_taken(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas writes floats where integers have gaps")
    frame = pandas.DataFrame(
        {"prompt": ["a", "b"], "seed": [7, None], "steps": [None, 3], "guidance": [None, 0.5]}
    )
    frame.index = pandas.Index([5, 9], name="seed_of_index")
    frame.to_parquet(tmp_path / "prompts.parquet")
    rows = image_rows(plan(tmp_path)).sort_by("input_row").to_pylist()
    assert [row["steps"] for row in rows] == [10, 3]
    assert [row["guidance"] for row in rows] == [3.0, 0.5]
    assert rows[0]["seed"] == 7


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_text_of_every_kind_plans_the_same_images(tmp_path: Path, kind: pa.DataType) -> None:
    texts = {
        "prompt": ["a", "b", "a"],
        "id": ["x", "y", None],
        "sampler": ["ddim", None, "euler"],
        "seed": ["1", "2", None],
    }
    expected = image_rows(plan(tmp_path / "plain", texts))
    columns = {name: pa.array(values).dictionary_encode() for name, values in texts.items()}
    if not pa.types.is_dictionary(kind):
        columns = {name: pa.array(values, kind) for name, values in texts.items()}
    assert image_rows(plan(tmp_path / "other", columns)) == expected


@pytest.mark.parametrize(
    "kind",
    [pa.bool_(), pa.binary(), pa.decimal128(9, 2), pa.list_(pa.string()), pa.date32()],
    ids=str,
)
@pytest.mark.parametrize("column", ["prompt", "id", "seed", "guidance"])
def test_column_of_another_type_is_refused_with_its_name(
    tmp_path: Path, column: str, kind: pa.DataType
) -> None:
    message = _error_message(tmp_path, {"prompt": ["a"], column: pa.nulls(1, kind)})
    assert message.startswith(f"prompts.parquet: column '{column}' is ")
    remedy = f" To leave {column} unread, set `columns: {{{column}: null}}`."
    assert message.removesuffix(remedy).endswith(
        (". Write it as strings.", ". Write it as integers.", ". Write it as floats.")
    )


def test_bytes_that_are_no_utf8_cost_their_rows_and_no_others(tmp_path: Path) -> None:
    bad = pa.array([b"good", b"\xff\xfe", b"fine", b"x", b"last"], pa.binary()).view(pa.string())
    bad_id = pa.array([b"0", b"1", b"2", b"\x80", None], pa.binary()).view(pa.string())
    planned = plan(tmp_path, {"prompt": bad, "id": bad_id}, limits={"rejected_share": 1})
    assert image_rows(planned)["prompt"].to_pylist() == ["good", "fine", "last"]
    assert [(row["input_row"], row["column_name"], row["reason"]) for row in rejected(planned)] == [
        (1, "prompt", "is not valid UTF-8"),
        (3, "id", "is not valid UTF-8"),
    ]


@pytest.mark.parametrize("ours", ["id", "seed", "source_image"])
def test_named_column_must_exist_in_each_file(tmp_path: Path, ours: str) -> None:
    write(tmp_path / "in/1.parquet", {"prompt": ["a"], "seedvalue": ["3"]})
    write(tmp_path / "in/2.parquet", {"prompt": ["b"], "seed_value": ["4"]})
    settings = job(tmp_path, prompts=f"{tmp_path}/in", columns={ours: "seedvalue"})
    read_again = validate_job(settings.model_dump())
    for named in (settings, read_again):
        with pytest.raises(BadInput) as caught:
            make_plan(named)
        assert str(caught.value) == (
            f"{tmp_path}/in/2.parquet: has no column 'seedvalue' (it has prompt, seed_value). "
            f"Correct columns.{ours}."
        )


def test_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array([1]), pa.array([2])], names=["prompt", "seed", "seed"]
    )
    write(tmp_path / "prompts.parquet", table)
    message = "prompts.parquet: has more than one column 'seed'. Rename one."
    assert _error_message(tmp_path) == message


def test_globs_are_read_in_the_order_of_names_and_patterns_as_listed(tmp_path: Path) -> None:
    for name in ("b/2", "b/10", "a/9", "a/1"):
        write(tmp_path / f"{name}.parquet", {"prompt": [name]})
    assert _prompts(tmp_path, prompts=[f"{tmp_path}/b/*.parquet", f"{tmp_path}/a/*.parquet"]) == [
        "b/10",
        "b/2",
        "a/1",
        "a/9",
    ]


def test_input_without_a_row_is_refused(tmp_path: Path) -> None:
    assert (
        _error_message(tmp_path, {"prompt": pa.array([], pa.string())})
        == "prompts.parquet: has no rows. Check `prompts`."
    )


def test_row_in_its_file_is_told_where_there_are_several_files(tmp_path: Path) -> None:
    for place, prompts in enumerate([["a"] * 3, [], ["b", None, ""]]):
        write(tmp_path / f"in/{place}.parquet", {"prompt": pa.array(prompts, pa.string())})
    planned = plan(tmp_path, prompts=f"{tmp_path}/in/*.parquet", limits={"rejected_share": 1})
    assert [
        (row["input_row"], row["file"], row["row_in_file"], row["reason"])
        for row in rejected(planned)
    ] == [
        (4, f"{tmp_path}/in/2.parquet", 1, "is null"),
        (5, f"{tmp_path}/in/2.parquet", 2, "is blank"),
    ]


def test_prompts_in_a_bucket_are_read_like_those_on_disk(tmp_path: Path, s3_bucket: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    local = [
        write(tmp_path / f"in/{n}.parquet", {"prompt": [f"p{n}"], "seed": [n]}) for n in (1, 2)
    ]
    for place, name in enumerate(local):
        with fsspec.open(f"{s3_bucket}/in/{place}.parquet", "wb") as file:
            file.write(Path(name).read_bytes())
    expected, got = (
        plan(tmp_path, prompts=local),
        plan(tmp_path, prompts=f"{s3_bucket}/in/*.parquet", run_id="s3"),
    )
    assert image_rows(got) == image_rows(expected)
    assert got.plan.input == expected.plan.input


def test_fingerprint_follows_contents_and_order_but_not_names(tmp_path: Path) -> None:
    def fingerprint(*names: str) -> str:
        patterns = [str(tmp_path / name) for name in names]
        return input_fingerprint(read_input_files(job(tmp_path, prompts=patterns), tmp_path))

    write(tmp_path / "a", {"prompt": ["first"]})
    write(tmp_path / "b", {"prompt": ["second"]})
    (tmp_path / "x").write_bytes((tmp_path / "a").read_bytes())
    (tmp_path / "y").write_bytes((tmp_path / "b").read_bytes())
    assert fingerprint("a", "b") == fingerprint("x", "y")
    assert fingerprint("a", "b") != fingerprint("b", "a")
    before = fingerprint("a", "b")
    write(tmp_path / "b", {"prompt": ["secant"]})
    assert fingerprint("a", "b") != before


def test_pattern_that_names_nothing_is_missing(store_uri: str, tmp_path: Path) -> None:
    open_store(store_uri).create("a.parquet", b"first")
    for name in ("none.parquet", "*.txt", "none/*.parquet"):
        with pytest.raises(Missing, match="no such file"):
            gather_sources((f"{store_uri}/a.parquet", f"{store_uri}/{name}"), tmp_path)


def test_disk_that_fails_is_not_taken_for_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    with pytest.raises(TryAgain, match=r"storage failed \(Input/output error\)"):
        plan(tmp_path, {"prompt": ["a"]})
