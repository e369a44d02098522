"""The steps one by one: what each prints, as text and as JSON."""

import json
import re
from pathlib import Path

import pytest

from imagekiln.steps.job.reader import read_job
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.storage import open_store
from tests.runs import DRAWABLE, UNDRAWABLE, fill, not_ok, write_prompts
from tests.workflows.cli.commands import ROWS, kiln, parse_json, plan_run


def test_plan_says_what_was_planned_and_where(job: str, tmp_path: Path) -> None:
    done = kiln("plan", job)
    assert done.exit_code == 0
    assert re.fullmatch(
        rf"Planned 6 images in 2 shards: {tmp_path}/out/tiny-[0-9a-f]{{12}}\n", done.stdout
    )
    assert done.stderr == ""


def test_plan_finds_its_own_plan_again(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = ("plan", job, "--set", "run_id=night")
    kiln(*night)
    again = kiln(*night)
    assert again.stdout.startswith("Reused the plan of 6 images in 2 shards: ")
    assert again.stderr == ""
    write_prompts(tmp_path / "prompts.parquet", ROWS[1:])
    monkeypatch.setenv("IMAGEKILN_LOG", "json")  # as in a pod
    event = json.loads(kiln(*night).stdout)
    assert event["event"] == "result"
    assert "this input has changed since the run was planned" in event["message"]


def test_plan_counts_the_rows_that_made_no_image(tmp_path: Path, job: str) -> None:
    rows = [*ROWS, {"prompt": "", "id": "a"}, ROWS[0], {"prompt": "word " * 60, "id": "b"}]
    write_prompts(tmp_path / "prompts.parquet", rows)
    done = kiln("plan", job, "--set", "limits.rejected_share=1", "--set", "shard.images=100")
    assert done.stdout.startswith(
        "Planned 7 images in 1 shard, 1 row rejected, 1 duplicate omitted, "
        "1 prompt truncated by the model: "
    )


def test_plan_says_where_rejected_rows_are_listed_and_why_they_were_rejected(
    tmp_path: Path, job: str
) -> None:
    ids = [{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}]
    rows = [*ROWS, {"prompt": ""}, *ids, {"prompt": " "}]
    write_prompts(tmp_path / "prompts.parquet", rows)
    settings = ("--set", "limits.rejected_share=1")
    done = kiln("plan", job, *settings)
    first, second, *reasons = done.stdout.splitlines()
    uri = first.rpartition(": ")[2]
    rejected = load_plan(open_store(uri)).rejected
    listed = f"Rejected rows are listed in {uri}/rejected-{rejected[:32]}.parquet."
    blank = "prompt is blank (2 rows; the first is row 6, value '')"
    same_id = (
        "id repeats the id of an earlier row with other content (1 row; the first is row 8, "
        "id 'x', value 'x')"
    )
    counted = "Rows are counted from 0, without a header. To leave id unread, set"
    assert second == listed
    assert reasons[:4] == [
        "Rejected:",
        f"  {blank}",
        f"  {same_id}",
        f"  {counted} `columns: {{id: null}}`.",
    ]
    assert kiln("plan", job, *settings).stdout.splitlines()[1] == listed

    estimated = kiln("estimate", job, *settings).stdout
    assert f"\nRejected:\n  {blank}\n  {same_id}\n  {counted}" in estimated
    causes = parse_json(kiln("estimate", job, *settings, "--format", "json"))["rejection_causes"]
    assert isinstance(causes, list)
    assert [cause["rows"] for cause in causes] == [2, 1]


def test_generate_says_what_it_made(job: str) -> None:
    run = plan_run(job)
    done = kiln("generate", run, "--shard", "1")
    assert done.exit_code == 0
    assert re.fullmatch(
        r"Shard 1: 2 images, \d+\.\d\d images/s on cpu\.\n",
        done.stdout,
    )
    assert kiln("generate", run, "--shard", "1").stdout == "Nothing is missing.\n"


def test_generate_tells_its_progress_on_stderr_and_in_argo_s_file(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = plan_run(job)
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(tmp_path / "progress"))
    done = kiln("generate", run, "--shard", "0")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["done"], line["total"]) for line in lines] == [
        ("progress", 0, 4),
        ("progress", 4, 4),
    ]
    assert (tmp_path / "progress").read_text() == "4/4\n"


def test_steps_one_by_one_make_the_dataset(job: str) -> None:
    run = plan_run(job)
    for shard in ("0", "1"):
        kiln("generate", run, "--shard", shard)
    name = Path(run).name
    assert kiln("aggregate", run).stdout == f"{name}: 6 of 6 images are ok.\n"
    assert "\nok:       6\n" in kiln("verify", run).stdout


def test_images_that_are_not_ok_exit_3_until_they_are_accepted(job: str) -> None:
    rows: list[dict[str, object]] = [{**row, **DRAWABLE} for row in ROWS]
    rows[0].update(UNDRAWABLE)
    write_prompts(Path(job).with_name("prompts.parquet"), rows)
    done = kiln("run", job)
    assert done.exit_code == 3
    command = re.search(
        r"To accept them: imagekiln (aggregate \S+ --failed-share 0.167)", done.stderr
    )
    assert command is not None
    accepted = kiln(*command[1].split())
    assert accepted.exit_code == 0
    assert accepted.stdout.endswith(": 5 of 6 images are ok, 1 failed.\n")


def test_what_gates_found_is_accepted_by_their_names(job: str) -> None:
    there = make_plan(read_job(job, ["limits.failed_share=1", "gates.blank.share=0.1"]))
    fill(there, {1: not_ok(1, "blank", "one colour")})
    failed = kiln("aggregate", there.uri)
    assert failed.exit_code == 3
    assert failed.stderr.endswith(
        f"To accept them: imagekiln aggregate {there.uri} --accept blank\n"
    )
    assert kiln("aggregate", there.uri, "--accept", "blank").stdout.endswith(
        ": 5 of 6 images are ok, 1 blank.\n"
    )
    assert "the job has no such gate" in kiln("aggregate", there.uri, "--accept", "bland").stderr
