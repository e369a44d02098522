"""All rejected rows are listed with the user's id and value, also where they stop the job."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from tests.jobs import image_rows, job, plan, rejected, write

ALL = {"rejected_share": 1}


def _refused(settings: Job) -> str:
    with pytest.raises(BadInput) as caught:
        make_plan(settings)
    return str(caught.value)


def test_rows_are_listed_with_id_and_value(tmp_path: Path) -> None:
    columns = {
        "prompt": ["good", "b", " ", "d", "e", None],
        "uid": pa.array([10, 11, 12, None, 14, 15]),
        "steps": ["3", "0", "3", "many", None, "3"],
        "sampler": [None, None, None, None, "DPM++ 2M", None],
    }
    planned = plan(tmp_path, columns, columns={"id": "uid"}, limits=ALL)
    assert [(row["id"], row["column_name"], row["value"]) for row in rejected(planned)] == [
        ("11", "steps", "0"),
        ("12", "prompt", " "),
        (None, "steps", "many"),
        ("14", "sampler", "DPM++ 2M"),
        ("15", "prompt", None),
    ]


def test_long_values_are_cut_and_bytes_are_escaped(tmp_path: Path) -> None:
    prompts = pa.array([b"good", b"a\xff", b"x" * 5000], pa.binary()).view(pa.string())
    first, second = rejected(plan(tmp_path, {"prompt": prompts}, limits=ALL))
    assert first["value"] == r"a\xff"
    assert second["value"] == "x" * 200 + "…"


def test_image_is_no_value(tmp_path: Path) -> None:
    columns = {"prompt": ["good", "b"], "source_image": pa.array([None, b"no image"])}
    (row,) = rejected(plan(tmp_path, columns, limits=ALL))
    assert (row["column_name"], row["value"]) == ("source_image", None)


def test_uuid_and_dictionary_are_shown_as_text(tmp_path: Path) -> None:
    columns = {
        "prompt": ["good", "b"],
        "id": pa.array([bytes(16), bytes(16)], pa.uuid()),
        "sampler": pa.array([None, "best"]).dictionary_encode(),
    }
    (row,) = rejected(plan(tmp_path, columns, limits=ALL))
    assert (row["id"], row["value"]) == ("00000000-0000-0000-0000-000000000000", "best")


def test_partition_is_shown_like_a_column(tmp_path: Path) -> None:
    write(tmp_path / "in/steps=3/a.parquet", {"prompt": ["good"]})
    write(tmp_path / "in/steps=0/b.parquet", {"prompt": ["bad"]})
    (row,) = rejected(plan(tmp_path, prompts=f"{tmp_path}/in", limits=ALL))
    assert (row["column_name"], row["value"]) == ("steps", "0")


def test_each_row_has_its_own_value_in_many_files_and_batches(tmp_path: Path) -> None:
    bad = {0: [5, 69_000], 1: [], 2: [0, 66_000, 69_999]}
    for number, rows in bad.items():
        steps = [1] * 70_000
        for row in rows:
            steps[row] = -row - 2
        prompts = [f"{number} {row}" for row in range(70_000)]
        write(tmp_path / f"in/{number}.parquet", {"prompt": prompts, "steps": steps, "id": prompts})
    listed = rejected(plan(tmp_path, prompts=f"{tmp_path}/in"))
    assert [(row["id"], row["value"], row["row_in_file"]) for row in listed] == [
        (f"{number} {row}", str(-row - 2), row) for number, rows in bad.items() for row in rows
    ]


def test_refused_job_lists_all_rows_and_leaves_no_plan(tmp_path: Path) -> None:
    columns = {"prompt": ["good", None, " ", "x" * 5000], "id": ["a", "b", "c", "d"]}
    settings = job(tmp_path, columns, run_id="night")
    sentence = _refused(settings)
    (path,) = tmp_path.glob("out/night/*")
    assert sentence == (
        f"{tmp_path}/prompts.parquet: 3 of 4 rows were rejected:\n"
        "  prompt is null (1 row; the first is row 1, id 'b')\n"
        "  prompt is blank (1 row; the first is row 2, id 'c', value ' ')\n"
        "  prompt is over 4000 characters "
        f"(1 row; the first is row 3, id 'd', value '{'x' * 40}…')\n"
        "Rows are counted from 0, without a header. "
        "75 % of the rows are rejected, and the limit is 1 %. "
        "Correct the input, or raise limits.rejected_share. "
        f"All are listed in {path}."
    )
    assert pq.read_table(path)["id"].to_pylist() == ["b", "c", "d"]


def test_columns_are_named_as_in_the_file(tmp_path: Path) -> None:
    columns = {"Caption": ["good", None], "Seed": ["1", "2.5"]}
    settings = job(tmp_path, columns, columns={"prompt": "Caption", "seed": "Seed"})
    assert "rejected: Seed is not a 64-bit integer (1 row; the first is row 1" in _refused(settings)
    write(tmp_path / "prompts.parquet", {"Caption": ["good", None], "Seed": ["1", "2"]})
    assert "rejected: Caption is null" in _refused(settings)


def test_file_of_another_encoding_is_to_be_saved_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes("prompt\na café\n".encode("latin-1"))
    refusal = _refused(job(tmp_path, prompts=f"{tmp_path}/p.csv"))
    assert (
        "prompt is not valid UTF-8 (1 row; the first is row 0 on line 2, value 'a caf\\\\xe9')"
        in refusal
    )
    assert "Save the file as UTF-8." in refusal
    assert "rejected_share" not in refusal


def test_corrected_job_takes_the_same_run(tmp_path: Path) -> None:
    columns = {"prompt": ["good", None, None]}
    settings = job(tmp_path, columns, run_id="night", limits={"rejected_share": 0.4})
    _refused(settings)
    write(tmp_path / "prompts.parquet", {"prompt": ["good", "fine", None]})
    planned = make_plan(settings)
    assert not planned.adopted
    assert image_rows(planned)["prompt"].to_pylist() == ["good", "fine"]
    assert [row["input_row"] for row in rejected(planned)] == [2]


def test_estimate_of_a_job_that_is_refused_writes_nothing(tmp_path: Path) -> None:
    settings = job(tmp_path, {"prompt": [None]})
    with pytest.raises(BadInput) as caught:
        estimate(settings)
    assert str(caught.value).endswith("raise limits.rejected_share.")
    assert not (tmp_path / "out").exists()


def test_folder_of_a_refused_job_is_no_run(tmp_path: Path) -> None:
    settings = job(tmp_path, {"prompt": [None]}, run_id="night")
    _refused(settings)
    with pytest.raises(BadInput):
        verify(f"{tmp_path}/out/night")


def test_prompt_under_another_spelling_of_its_key_is_named(tmp_path: Path) -> None:
    lines = '{"prompt": "a"}\n{"Prompt": "b"}\n'
    (tmp_path / "p.jsonl").write_text(lines)
    refusal = _refused(job(tmp_path, prompts=f"{tmp_path}/p.jsonl"))
    assert "prompt is null; the input also has 'Prompt', which is not read (1 row;" in refusal
