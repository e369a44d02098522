"""All rejected rows are listed with the user's id and value, also where they stop the job."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.plan.step import make_plan
from tests.jobs import job, plan, rejected, write

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


def test_file_of_another_encoding_is_to_be_saved_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes("prompt\na café\n".encode("latin-1"))
    refusal = _refused(job(tmp_path, prompts=f"{tmp_path}/p.csv"))
    assert (
        "prompt is not valid UTF-8 (1 row; the first is row 0 on line 2, value 'a caf\\\\xe9')"
        in refusal
    )
    assert "Save the file as UTF-8." in refusal
    assert "rejected_share" not in refusal
