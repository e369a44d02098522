"""Every command: what it prints for people and for programs, and its exit code."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import read_job
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import PLAN_KEY, SUMMARY_KEY, part_key, stats_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.cli.main import main
from tests.runs import PROMPTS, encoded, fill, finished, not_ok, settings, write_prompts
from tests.steps.generate.diffusion.test_device import ABSENT

ROWS = PROMPTS[:6]  # shards of 4 and 2 images
COMMANDS = [
    "aggregate", "apply", "backfill", "demo", "diff", "doctor", "estimate", "fetch", "gc", "generate", "list", "logs",
    "outcome", "plan", "render", "reproduce", "resubmit", "result", "resume", "retry", "run", "schedule", "schema",
    "stop", "submit", "suspend", "tune", "verify", "wait", "watch",
]  # fmt: skip


def kiln(*arguments: str) -> Result:
    """Run a command in this process. Without a terminal, so progress comes as JSON lines on stderr."""
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def job(tmp_path: Path) -> str:
    """A job file for six images."""
    prompts = write_prompts(tmp_path / "prompts.parquet", ROWS)
    values = settings(prompts, str(tmp_path / "out"), shard={"images": 4})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(values))
    return str(tmp_path / "job.yaml")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A finished run of 20 images."""
    return finished(tmp_path / "finished")


def _json(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def _planned(job: str) -> str:
    return str(_json(kiln("plan", job, "--output", "json"))["uri"])


def test_plan_says_what_was_planned_and_where(job: str, tmp_path: Path) -> None:
    done = kiln("plan", job)
    assert done.exit_code == 0
    assert re.fullmatch(
        rf"Planned 6 images in 2 shards: {tmp_path}/out/tiny-[0-9a-f]{{12}}\n", done.stdout
    )
    assert done.stderr == ""


def test_plan_finds_its_own_plan_again(job: str) -> None:
    kiln("plan", job)
    assert kiln("plan", job).stdout.startswith("Found the plan of 6 images in 2 shards: ")


def test_plan_counts_the_rows_that_made_no_image(tmp_path: Path, job: str) -> None:
    rows = [*ROWS, {"prompt": "", "id": "a"}, ROWS[0], {"prompt": "word " * 60, "id": "b"}]
    write_prompts(tmp_path / "prompts.parquet", rows)
    done = kiln("plan", job, "--set", "limits.rejected_share=1", "--set", "shard.images=100")
    assert done.stdout.startswith(
        "Planned 7 images in 1 shard, 1 rows refused, 1 duplicates, made once, 1 prompts that the model cuts: "
    )


def test_plan_as_json_is_the_plan_and_its_place(job: str) -> None:
    found = _json(kiln("plan", job, "--output", "json"))
    assert set(found) == {"plan", "uri", "adopted"}
    assert found["adopted"] is False
    assert found["plan"] == json.loads(open_store(str(found["uri"])).read(PLAN_KEY))


def test_generate_says_what_it_made(job: str) -> None:
    run = _planned(job)
    done = kiln("generate", run, "--shard", "1")
    assert done.exit_code == 0
    assert re.fullmatch(
        r"Shard 1: 2 images, \d+\.\d\d a second on cpu(, which computed [\w. ]+ % of the time)?\.\n",
        done.stdout,
    )
    assert kiln("generate", run, "--shard", "1").stdout == "Nothing is missing.\n"


def test_generate_as_json_is_the_shard_s_statistics(job: str) -> None:
    run = _planned(job)
    found = _json(kiln("generate", run, "--shard", "0", "--output", "json"))
    assert found == json.loads(open_store(run).read(stats_key(0)))
    again = kiln("generate", run, "--shard", "0", "--output", "json")
    assert json.loads(again.stdout) is None


def test_generate_tells_its_progress_on_stderr_and_in_argo_s_file(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _planned(job)
    monkeypatch.setenv("ARGO_PROGRESS_FILE", str(tmp_path / "progress"))
    done = kiln("generate", run, "--shard", "0")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["done"], line["total"]) for line in lines] == [
        ("progress", 0, 4),
        ("progress", 0, 4),
        ("progress", 4, 4),
    ]
    assert (tmp_path / "progress").read_text() == "4/4\n"


def test_steps_one_by_one_make_the_dataset(job: str) -> None:
    run = _planned(job)
    for shard in ("0", "1"):
        kiln("generate", run, "--shard", shard)
    name = Path(run).name
    assert kiln("aggregate", run).stdout == f"{name}: 6 of 6 images are ok.\n"
    size = json.loads(open_store(run).read(SUMMARY_KEY))["bytes"]
    assert (
        kiln("verify", run).stdout
        == f"{run}: 6 of 6 images read back as planned, {size:,} bytes.\n"
    )


def test_aggregate_as_json_is_the_summary(store: Store) -> None:
    assert _json(kiln("aggregate", store.uri, "--output", "json")) == json.loads(
        store.read(SUMMARY_KEY)
    )


def test_verify_as_json_counts_what_was_read(store: Store) -> None:
    size = json.loads(store.read(SUMMARY_KEY))["bytes"]
    found = _json(kiln("verify", store.uri, "--output", "json"))
    assert found == {"run": store.uri, "images": 20, "ok": 20, "bytes": size}


def test_run_does_everything_and_says_where_to_look(job: str, tmp_path: Path) -> None:
    done = kiln("run", job)
    assert done.exit_code == 0
    (run,) = (each for each in (tmp_path / "out").iterdir() if each.name != "_runs")
    assert done.stdout == (
        f"{run.name}: 6 of 6 images are ok.\nDataset: {run}\nReport:  {run}/report/index.html\n"
    )
    assert (run / "report" / "index.html").is_file()
    plan, *progress = done.stderr.splitlines()
    assert plan == f"Planned 6 images in 2 shards: {run}"
    assert [json.loads(line)["done"] for line in progress][-1] == 6


def test_run_again_has_nothing_to_do(job: str) -> None:
    first = kiln("run", job)
    again = kiln("run", job)
    assert again.exit_code == 0
    assert again.stdout == f"Finished before; nothing to do.\n{first.stdout}"


def test_run_as_json_keeps_progress_out_of_stdout(job: str) -> None:
    found = _json(kiln("run", job, "--output", "json"))
    assert set(found) == {"uri", "summary", "before"}
    assert found["before"] is False
    assert found["summary"] == json.loads(open_store(str(found["uri"])).read(SUMMARY_KEY))


def test_demo_runs_the_bundled_job(tmp_path: Path) -> None:
    prompts = write_prompts(
        tmp_path / "prompts.parquet", [{"prompt": "a red circle", "collection": "one"}]
    )
    changed = {
        "prompts": prompts,
        "output": tmp_path / "out",
        "defaults.steps": 1,
        "batch.images": 1,
        "threads": 1,
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
        "rows:        6 (0 refused)",
        "images:      6 (0 duplicates left out)",
        "prompts cut: 0",
        "shards:      2 (2 parts in all)",
        "gigabytes:   0.00 or so, as PNG",
        "GPU-hours:   unknown; set shard.seconds_per_image",
    ]
    assert not (tmp_path / "out").exists()


def test_estimate_knows_the_cost_where_it_is_told_the_speed_and_the_price(job: str) -> None:
    speed = ("--set", "shard.seconds_per_image=1200", "--price", "2.5")
    assert kiln("estimate", job, *speed).stdout.splitlines()[-2:] == [
        "GPU-hours:   2.00",
        "cost:        5.00",
    ]
    found = _json(kiln("estimate", job, *speed, "--output", "json"))
    assert (found["images"], found["gpu_hours"], found["cost"]) == (6, 2.0, 5.0)


def test_schema_is_that_of_the_job_file() -> None:
    found = _json(kiln("schema"))
    assert found == Job.model_json_schema()
    assert found["additionalProperties"] is False


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=str)
def test_help_lists_every_command(arguments: tuple[str, ...]) -> None:
    done = kiln(*arguments)
    assert re.findall(r"^  (\w+)  +[A-Z]", done.output, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_has_help(command: str) -> None:
    done = kiln(command, "--help")
    assert done.exit_code == 0
    for parameter in main.commands[command].params:
        assert parameter.param_type_name == "argument" or getattr(parameter, "help", None)


def test_version_is_that_of_the_package() -> None:
    assert version("imagekiln") in kiln("--version").output


def _broken(store: Store) -> None:
    store.replace(part_key(0, 0), b"PAR1")


def _without_a_part(store: Store) -> None:
    store.remove(part_key(0, 0))


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            ("plan", "{job}", "--set", "model.dtype=bf16"),
            2,
            'model.dtype is "bf16"; write "bfloat16".',
        ),
        (("plan", "{folder}/absent.yaml"), 2, "{folder}/absent.yaml: no such file"),
        (
            ("plan", "{job}", "--set", "prompts={folder}/absent.parquet"),
            2,
            "{folder}/absent.parquet: no such file",
        ),
        (
            ("run", "{job}", "--set", "model.id={folder}/absent"),
            2,
            "{folder}/absent: no such model folder",
        ),
        (("estimate", "{job}", "--set", "nosuch=1"), 2, "--set nosuch: nosuch is not a setting"),
        (("generate", "{run}", "--shard", "99"), 2, "{run}: has shards 0 to 2, not 99."),
        (("generate", "{folder}/absent", "--shard", "0"), 2, "{folder}/absent: holds no plan"),
        (("aggregate", "{folder}/absent"), 2, "{folder}/absent: holds no plan"),
        (("verify", "{folder}/absent"), 2, "{folder}/absent: holds no plan"),
        (("generate", "{run}"), 2, "Missing option '--shard'"),
        (("generate", "{run}", "--shard", "one"), 2, "'one' is not a valid integer"),
        (("plan", "{job}", "--output", "xml"), 2, "'xml' is not one of 'text', 'json'"),
        (("aggregate", "{run}", "--failed-share", "2"), 2, "2.0 is not in the range 0<=x<=1"),
        (("nosuch",), 2, "No such command 'nosuch'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_mistakes_exit_2_with_a_sentence_and_nothing_on_stdout(
    arguments: tuple[str, ...], code: int, sentence: str, job: str, store: Store, tmp_path: Path
) -> None:
    given = {"job": job, "run": store.uri, "folder": str(tmp_path)}
    done = kiln(*(word.format(**given) for word in arguments))
    assert done.exit_code == code
    assert done.stdout == ""
    assert sentence.format(**given) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("command", ["aggregate", "verify"])
def test_an_incomplete_run_exits_3(command: str, output: str, store: Store) -> None:
    store.remove(part_key(0, 0))
    done = kiln(command, store.uri, "--output", output)
    assert (done.exit_code, done.stdout) == (3, "")
    assert part_key(0, 0) in done.stderr


def test_images_that_are_not_ok_exit_3_until_they_are_accepted(job: str) -> None:
    rows = [
        {**row, "sampler": "flow_euler" if place == 0 else None} for place, row in enumerate(ROWS)
    ]
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


def test_what_may_work_another_time_exits_75(job: str) -> None:
    done = kiln("run", job, "--set", f"device={ABSENT}")
    assert (done.exit_code, done.stdout) == (75, "")
    assert f"device '{ABSENT}' is not there" in done.stderr


def test_a_bug_of_ours_exits_1_and_is_not_hidden(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_uri: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("imagekiln.steps.maintain.verify.verify", broken)
    done = kiln("verify", store.uri)
    assert done.exit_code == 1
    assert isinstance(done.exception, ZeroDivisionError)


@pytest.fixture
def generating(job: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A run whose only shard a process of its own is making, part after part, for minutes."""
    many = {"defaults.steps": 300, "defaults.images_per_prompt": 50}
    changed = {**many, "shard.images": 300, "part.images": 1, "batch.images": 1}
    options = [word for key, value in changed.items() for word in ("--set", f"{key}={value}")]
    run = str(_json(kiln("plan", job, *options, "--output", "json"))["uri"])
    program = "from imagekiln.workflows.cli import main; main()"
    command = [sys.executable, "-c", program, "generate", run, "--shard", "0"]
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        yield run, process
        process.kill()


def test_sigterm_ends_a_pod_with_75_and_what_was_made_is_kept(
    generating: tuple[str, subprocess.Popen[str]],
) -> None:
    run, process = generating
    end = time.monotonic() + 120
    while (
        not open_store(run).exists(part_key(0, 1))
        and process.poll() is None
        and time.monotonic() < end
    ):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    asked = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr
    assert time.monotonic() - asked < 20
    assert re.search(r"shard 0 was stopped with \d+ parts left. Run it again\.\n$", stderr)
    assert {json.loads(line)["event"] for line in stderr.splitlines()[:-1]} <= {"progress"}, (
        "a library talks"
    )
    told = json.loads(open_store(run).read(stats_key(0)))
    assert told["parts"] >= 2
    assert open_store(run).exists(part_key(0, told["parts"] - 1))
    assert not open_store(run).exists(part_key(0, told["parts"]))


def test_images_of_parts_made_by_hand_are_shown_by_status(job: str) -> None:
    there = make_plan(read_job(job, ["limits.failed_share=1"]))
    fill(there, {0: not_ok(0), 1: not_ok(1, "blank", "one colour"), 2: encoded(9)})
    done = kiln("aggregate", there.uri)
    assert done.stdout.endswith(": 4 of 6 images are ok, 1 blank, 1 failed.\n")


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
