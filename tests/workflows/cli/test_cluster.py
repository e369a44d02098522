"""A job on a cluster from the shell: what is printed, and what the exit code says."""

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kubernetes.config import kube_config

from imagekiln.workflows.cli.main import main
from imagekiln.workflows.client import connect
from imagekiln.workflows.objects import Json
from tests.workflows.memory import Memory

NAMESPACE = "images"
JOB = """\
name: postcards
prompts: s3://prompts/*.parquet
output: s3://datasets
model: {id: "bundled:shapes"}
cluster: {namespace: images, profile: gpu}
"""


@pytest.fixture
def argo(monkeypatch: pytest.MonkeyPatch) -> Memory:
    found = Memory()
    monkeypatch.setattr(connect, "connect", lambda *_: found)
    return found


@pytest.fixture
def name(argo: Memory, tmp_path: Path) -> str:
    """The name of a workflow that was submitted from the shell."""
    (tmp_path / "job.yaml").write_text(JOB)
    done = CliRunner().invoke(main, ["submit", str(tmp_path / "job.yaml"), "--format", "json"])
    assert done.exit_code == 0, done.output
    found = str(json.loads(done.stdout)["name"])
    assert done.stderr == f"`imagekiln watch {found} -n images` follows it.\n"
    assert ("Workflow", NAMESPACE, found) in argo.objects
    return found


def kiln(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-n", NAMESPACE])


def node(exit_code: int) -> dict[str, object]:
    message = f"main: Error (exit code {exit_code}): prompts.parquet has no column `prompt`"
    return {
        "id": "a-1",
        "type": "Pod",
        "templateName": "plan",
        "phase": "Failed",
        "message": message,
    }


@pytest.mark.parametrize("options", [(), ("--quiet",), ("--once",)])
@pytest.mark.parametrize(
    ("phase", "exit_code", "left_with"),
    [("Succeeded", 0, 0), ("Failed", 2, 2), ("Failed", 3, 3), ("Error", 75, 3)],
)
def test_exit_code_says_how_a_workflow_ended(
    argo: Memory, name: str, options: tuple[str, ...], phase: str, exit_code: int, left_with: int
) -> None:
    argo.end(name, phase, nodes={"a-1": node(exit_code)} if exit_code else {})
    done = kiln("watch", name, *options)
    assert done.exit_code == left_with
    assert done.stdout.startswith(f"images/{name}: {phase}")
    assert ("has no column `prompt`" in done.stdout) == bool(exit_code)


@pytest.mark.usefixtures("argo")
def test_workflow_that_has_not_ended_is_shown_once_and_is_to_be_asked_for_again(name: str) -> None:
    done = kiln("watch", name, "--once")
    assert (done.exit_code, done.stdout) == (75, f"images/{name}: Pending\n")


def test_workflow_that_is_stopped_goes_on_by_the_command_that_is_named(
    argo: Memory, name: str
) -> None:
    done = kiln("stop", name)
    assert f"`imagekiln resubmit {name} -n {NAMESPACE}`" in done.stdout
    argo.end(name, "Failed")
    assert kiln("resubmit", name).stdout == f"images/{name}-again-2: Pending\n"
    assert set(kiln("workflows").stdout.splitlines()) == {
        f"images/{name}: Failed",
        f"images/{name}-again-2: Pending",
    }


def test_second_stop_terminates_and_says_so(argo: Memory, name: str) -> None:
    assert "is stopping" in kiln("stop", name).stdout
    refused = kiln("resubmit", name)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"`imagekiln stop {name} -n {NAMESPACE}` terminates it" in refused.stderr
    assert "is terminated" in kiln("stop", name).stdout
    argo.end(name, "Failed")
    assert f"{name} had ended before. `imagekiln resubmit " in kiln("stop", name).stdout
    argo.end(name, "Succeeded")
    assert kiln("stop", name).stdout == (
        f"{name} has succeeded: there is nothing to stop or to resume.\n"
    )


@pytest.mark.parametrize("command", ["watch", "logs"])
def test_interrupted_command_says_that_the_workflow_goes_on(
    argo: Memory, name: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(argo, "get", interrupt)
    done = kiln(command, name)
    assert done.exit_code == 75
    assert f"{name} goes on: `imagekiln watch {name} -n images` shows it" in done.stderr


def test_no_text_of_a_workflow_forges_the_line_of_another(argo: Memory, name: str) -> None:
    forged = "Running\nimages/other: Succeeded\x1b[2K"
    failed = {**node(1), "templateName": forged}
    for phase, nodes in ((forged, {}), ("Failed", {"a-1": failed})):
        argo.end(name, phase, nodes=nodes)
        for command in (("workflows",), ("watch", name, "--once")):
            output = kiln(*command).output
            assert "\nimages/other" not in output
            assert "\x1b" not in output


def test_no_text_of_a_schedule_forges_the_line_of_another(argo: Memory) -> None:
    labels = {"app.kubernetes.io/part-of": "imagekiln"}
    metadata: Json = {"name": "nightly", "namespace": NAMESPACE, "labels": labels}
    forged = "0 1 * * *\nimages/other: 0 2 * * * UTC\x1b[2K"
    spec: Json = {"schedules": [forged], "timezone": forged}
    status: Json = {"lastScheduledTime": forged, "active": [{"name": forged}]}
    schedule: Json = {"kind": "CronWorkflow", "metadata": metadata, "spec": spec, "status": status}
    argo.create(schedule)
    output = kiln("schedule", "list").output
    assert output.splitlines()[1].startswith("images/nightly  0 1 * * *")
    assert len(output.splitlines()) == 2
    assert "\x1b" not in output


@pytest.mark.usefixtures("argo")
def test_backfill_without_a_schedule_names_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    days = ["--from", "2026-11-01", "--to", "2026-11-02"]
    done = CliRunner().invoke(main, ["schedule", "backfill", str(tmp_path / "job.yaml"), *days])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("postcards: has no schedule in namespace images, ")
    assert "imagekiln schedule create JOB --cron CRON" in done.stderr
    assert "imagekiln submit JOB --date 2026-11-20T01:30 --timezone ZONE" in done.stderr


def test_what_a_pod_logs_cannot_move_the_cursor(argo: Memory, name: str) -> None:
    argo.end(name, "Running", nodes={"a-1": node(2)})
    argo.logged = {f"{name}-plan-1": ["\x1b[2Jdrawn\rall\nis well"]}
    done = kiln("logs", name)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert done.stdout.startswith("plan: ")
    assert len(done.stdout.splitlines()) == 1


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a kubeconfig nor an Argo server."""
    monkeypatch.delenv("ARGO_SERVER", raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("submit", "{job}", "--date", "2026-13-01"),
            "date '2026-13-01': is not an ISO 8601 date.",
        ),
        (("submit", "{job}"), "kubeconfig: names no cluster"),
    ],
)
def test_dates_are_checked_before_the_cluster_is_asked(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    done = CliRunner().invoke(main, [word.format(job=job) for word in arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(sentence)


@pytest.mark.parametrize("command", [("submit",), ("schedule", "create", "--cron", "30 1 * * *")])
def test_a_job_with_paths_of_this_machine_is_refused_before_any_cluster_is_asked(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("asked for a cluster")

    monkeypatch.setattr(connect, "connect", refuse)
    (tmp_path / "job.yaml").write_text(JOB.replace("s3://datasets", "out"))
    done = CliRunner().invoke(main, [*command, str(tmp_path / "job.yaml")])
    assert done.exit_code == 2
    assert "output is 'out', a path on this machine" in done.stderr
