"""All commands: how they are listed, and the exit code that each end of a command has."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from imagekiln.steps.maintain import verify as verification
from imagekiln.steps.runs.keys import commit_key, part_key
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from imagekiln.workflows.cli.main import main
from tests.devices import remove_gpu
from tests.runs import stats_of
from tests.workflows.cli.commands import kiln, plan_run

COMMANDS = {
    "On this machine": ["init", "estimate", "preview", "run", "tune", "demo", "schema"],
    "On a cluster": [
        "manifests", "doctor", "submit", "watch", "workflows", "logs", "stop", "resubmit", "apply",
        "render", "schedule",
    ],
    "After a run": ["runs", "verify", "retry", "reproduce", "diff", "gallery", "gc"],
    "Datasets": ["export", "push", "forget"],
    "Steps that pods run": ["plan", "aggregate"],
}  # fmt: skip
ON_SCHEDULES = ("create", "list", "pause", "resume", "delete", "backfill")
HIDDEN_COMMANDS = ("rewrite", "generate", "copy", "fetch", "outcome", "publish")
ALL_COMMANDS = [
    *HIDDEN_COMMANDS,
    *(command for commands in COMMANDS.values() for command in commands if command != "schedule"),
    *(f"schedule {command}" for command in ON_SCHEDULES),
]


def listed_commands(text: str) -> dict[str, list[str]]:
    """The commands of a help, by the titles of its sections."""
    sections = re.findall(r"^([A-Z][\w ]+):\n((?:  .+\n)+)", text, re.MULTILINE)
    listed = {title: re.findall(r"^  (\w+)", body, re.MULTILINE) for title, body in sections}
    del listed["Options"]
    return listed


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=str)
def test_help_lists_commands_under_their_purposes_and_fits_a_terminal(
    arguments: tuple[str, ...],
) -> None:
    text = kiln(*arguments).output
    assert listed_commands(text) == COMMANDS
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") and "Usage" not in line for line in lines)


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_every_parameter_of_a_command_has_help_and_every_command_an_example(command: str) -> None:
    done = kiln(*command.split(), "--help")
    assert done.exit_code == 0
    assert f"Examples:\n  imagekiln {command}" in done.output
    assert max(map(len, done.output.splitlines())) <= 100
    name, _, action = command.partition(" ")
    found = main.commands[name]
    if isinstance(found, click.Group):
        found = found.commands[action]
    for parameter in found.params:
        assert getattr(parameter, "help", None), parameter.name


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            ("plan", "{job}", "--set", "model.dtype=bf16"),
            2,
            'model.dtype is "bf16"; it should be ',
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
        (("generate", "{run}"), 2, "Missing option '--shard'"),
        (("plan", "{job}", "--format", "xml"), 2, "'xml' is not one of 'text', 'json'"),
        (("aggregate", "{run}", "--failed-share", "2"), 2, "2.0 is not in the range 0<=x<=1"),
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
    if command == "aggregate":
        store.remove(commit_key(0))  # what a commit has counted is not looked for again
    done = kiln(command, store.uri, "--format", output)
    assert (done.exit_code, done.stdout) == (3, "")
    assert part_key(0, 0) in done.stderr


def test_what_may_work_another_time_exits_75(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_gpu(monkeypatch)
    run = plan_run(job, "--set", "device=cuda")
    done = kiln("generate", run, "--shard", "0")
    assert (done.exit_code, done.stdout) == (75, "")
    assert "device 'cuda' is not there" in done.stderr


def test_a_bug_of_ours_exits_1_and_is_not_hidden(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = ZeroDivisionError("a bug")

    def broken(_uri: str) -> None:
        raise bug

    monkeypatch.setattr(verification, "verify", broken)
    done = kiln("verify", store.uri)
    assert done.exit_code == 1
    assert done.exception is bug


@pytest.fixture
def generating(job: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A run whose only shard a process of its own is making, part after part, for minutes."""
    many = {"defaults.steps": 60, "defaults.images_per_prompt": 50}
    changed = {**many, "shard.images": 300, "part.images": 1, "batch.images": 1}
    options = [word for key, value in changed.items() for word in ("--set", f"{key}={value}")]
    run = plan_run(job, *options)
    command = [sys.executable, "-m", "imagekiln", "generate", run, "--shard", "0"]
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        yield run, process
        process.kill()


@pytest.mark.slow
def test_sigterm_ends_a_pod_with_75_and_what_was_made_is_kept(
    generating: tuple[str, subprocess.Popen[str]],
) -> None:
    run, process = generating
    end = time.monotonic() + 300
    while (
        not open_store(run).exists(part_key(0, 1))
        and process.poll() is None
        and time.monotonic() < end
    ):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75, stderr
    assert re.search(r"shard 0 was stopped with \d+ parts? left\. Run the same .*\.\n$", stderr)
    events = {json.loads(line)["event"] for line in stderr.splitlines()[:-1]}
    assert events == {"start", "progress"}  # nothing that a library says
    told = stats_of(run)
    assert told is not None
    assert told.parts >= 2
    assert open_store(run).exists(part_key(0, told.parts - 1))
    assert not open_store(run).exists(part_key(0, told.parts))


def test_ctrl_c_while_a_command_starts_ends_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")  # as while it is imported
    done = subprocess.run(
        [sys.executable, "-m", "imagekiln", "schema"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (75, "Stopped. Run the same command again.\n")
