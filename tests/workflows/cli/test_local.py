"""A whole job on this machine: what is printed, as text and as JSON."""

import json
import re
from pathlib import Path

from imagekiln.steps.aggregate.summary import load_summary, summary_to_json
from imagekiln.steps.job.job import Job
from imagekiln.steps.storage import open_store
from tests.runs import write_prompts
from tests.workflows.cli.commands import ROWS, kiln, parse_json


def test_run_does_everything_and_says_where_to_look(job: str, tmp_path: Path) -> None:
    done = kiln("run", job)
    assert done.exit_code == 0
    (run,) = (each for each in (tmp_path / "out").iterdir() if (each / "plan.json").exists())
    *lines, took = done.stdout.splitlines()
    assert lines == [
        f"{run.name}: 6 of 6 images are ok.",
        f"Dataset: {run}",
        f"Report:  {run}/report/index.html",
    ]
    assert re.fullmatch(r"Took:    [0-9.]+ s of device time", took)
    assert (run / "report" / "index.html").is_file()
    plan, loading, *progress = done.stderr.splitlines()
    assert plan == f"Planned 6 images in 2 shards: {run}"
    assert json.loads(loading)["message"] == "Loading the model ..."
    assert [json.loads(line)["done"] for line in progress][-1] == 6


def test_run_again_has_nothing_to_do_and_says_where_its_input_has_changed(
    job: str, tmp_path: Path
) -> None:
    first = kiln("run", job)
    again = kiln("run", job)
    assert again.exit_code == 0
    assert again.stdout == f"Already finished; nothing to do.\n{first.stdout}"

    prompts = write_prompts(tmp_path / "prompts.parquet", ROWS[1:])
    run_id = first.stdout.partition(":")[0]
    named = kiln("run", job, "--set", f"run_id={run_id}")
    assert (named.exit_code, named.stdout) == (0, again.stdout)
    assert f"{prompts}: this input has changed since" in named.stderr


def test_estimate_does_not_take_what_a_cpu_took_for_a_profile_of_named_gpus(job: str) -> None:
    kiln("run", job)
    anywhere = ("estimate", job, "--set", "device=auto")
    assert ", 6 images, on cpu)" in kiln(*anywhere).stdout
    assert "GPU-hours:  unknown; " in kiln(*anywhere, "--set", "cluster.profile=h100").stdout


def test_run_as_json_keeps_progress_out_of_stdout(job: str) -> None:
    found = parse_json(kiln("run", job, "--format", "json"))
    assert set(found) == {"uri", "summary", "before", "input_change", "exports"}
    assert found["before"] is False
    assert found["summary"] == summary_to_json(load_summary(open_store(str(found["uri"]))))


def test_demo_runs_the_bundled_job(tmp_path: Path) -> None:
    prompts = write_prompts(
        tmp_path / "prompts.parquet", [{"prompt": "a red circle", "collection": "one"}]
    )
    changed = {
        "prompts": prompts,
        "output": tmp_path / "out",
        "defaults.steps": 1,
        "batch.images": 1,
    }
    done = kiln(
        "demo", *(word for key, value in changed.items() for word in ("--set", f"{key}={value}"))
    )
    assert done.exit_code == 0, done.stderr
    assert re.match(r"demo-[0-9a-f]{12}: 1 of 1 images are ok\.\nDataset: ", done.stdout)


def test_estimate_says_what_a_job_would_take_and_writes_nothing(job: str, tmp_path: Path) -> None:
    done = kiln("estimate", job)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "rows:         6 (0 rejected)",
        "images:       6 (0 duplicates omitted)",
        "shards:       2 (2 parts in all)",
        "drawn with:   2 steps (the job), guidance 3 (the job)",
        "size:         about 2.3 kB",
        "weights:      627 kB once loaded",
        "device-hours: unknown; run `imagekiln tune JOB` on its GPU or CPU, or set "
        "shard.seconds_per_image; or run a sample of the rows under this output",
    ]
    assert not (tmp_path / "out").exists()


def test_estimate_counts_the_highest_price_of_a_table_where_the_gpu_is_unknown(job: str) -> None:
    settings = ("--set", "shard.seconds_per_image=1200", "--set", "budget.cost=1")
    prices = "price_per_hour={NVIDIA L4: 0.7, NVIDIA H100: 3.5}"
    in_job = (*settings, "--set", prices)
    lines = [
        "cost:         up to 7.00 (at 3.50 per device-hour: NVIDIA H100)",
        "budget:       exceeded: cost 7.00, where budget.cost is 1.00",
    ]
    assert kiln("estimate", job, *in_job).stdout.splitlines()[-2:] == lines
    assert "cost 7.00, where budget.cost is 1.00" in kiln("plan", job, *in_job).stderr


def test_preview_says_that_its_images_are_part_of_the_run(job: str) -> None:
    assert "run or submit the job, and it makes the others" in kiln("preview", job).stdout


def test_estimate_knows_the_cost_where_it_is_told_the_speed_and_the_price(job: str) -> None:
    speed = ("--set", "shard.seconds_per_image=1200", "--price", "2.5")
    assert kiln("estimate", job, *speed).stdout.splitlines()[-3:] == [
        "device-hours: 2.00 (by the job's shard.seconds_per_image)",
        "time:         about 60 min on 2 devices at once",
        "cost:         5.00 (at 2.50 per device-hour: one price for all GPUs)",
    ]
    found = parse_json(kiln("estimate", job, *speed, "--format", "json"))
    assert (found["images"], found["gpu_hours"], found["cost"]) == (6, 2.0, 5.0)


def test_schema_is_that_of_the_job_file() -> None:
    found = parse_json(kiln("schema"))
    assert found == Job.model_json_schema()
    assert found["additionalProperties"] is False


OWN_SCORE = "scores={warm: {kind: own, entry: 'score_beside:red'}}"
SCORE = "def red(images, specs):\n    return [float(image[..., 0].mean()) for image in images]\n"


def test_score_that_is_missing_is_noted_by_estimate_and_refused_before_planning(
    job: str, tmp_path: Path
) -> None:
    estimated = kiln("estimate", job, "--set", OWN_SCORE)
    assert estimated.exit_code == 0
    assert "scores.warm: score_beside:red does not import" in estimated.stderr
    for command in ("preview", "run"):
        refused = kiln(command, job, "--set", OWN_SCORE)
        assert refused.exit_code == 2
        assert "Put score_beside.py into the current folder or beside the job" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_every_process_of_a_run_imports_a_score_beside_the_job(job: str, tmp_path: Path) -> None:
    (tmp_path / "score_beside.py").write_text(SCORE)
    changes = (job, "--set", OWN_SCORE, "--set", "device=cpu")
    assert kiln("plan", *changes).exit_code == 0  # a plan that is adopted knows of no job's file
    done = kiln("run", *changes, "--gpus", "2")
    assert done.exit_code == 0, done.stderr
    assert "6 of 6 images are ok" in done.stdout
