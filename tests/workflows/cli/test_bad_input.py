"""Mistakes of users, through the command line: one sentence, exit code 2, and nothing written."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from imagekiln.steps.storage import filesystem
from imagekiln.steps.storage.filesystem import S3_OPTIONS
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from imagekiln.workflows.cli.main import main
from tests.hub import hub
from tests.jobs import Columns, files, write
from tests.mounts import small_disk
from tests.s3 import Login, S3Server, log_in

SHAPES = BUNDLED_FOLDER / "shapes"
ROWS = 12_345
PROMPTS = {"prompt": [f"a red circle, number {row}" for row in range(ROWS)]}
HEAVY = [
    "diffusers",
    "duckdb",
    "huggingface_hub",
    "numpy",
    "pyarrow",
    "pydantic",
    "s3fs",
    "torch",
    "transformers",
]
IMAGEKILN = [sys.executable, "-m", "imagekiln"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test stands in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _job(columns: Columns | None = None, **settings: object) -> str:
    """A job file that is right but for what a test gives it."""
    if columns is not None:
        write(Path("prompts.parquet"), columns)
    plain = {
        "name": "test",
        "prompts": "prompts.parquet",
        "output": "out",
        "model": {"id": "bundled:shapes"},
    }
    Path("job.yaml").write_text(yaml.safe_dump({**plain, **settings}), encoding="utf-8")
    return "job.yaml"


def _refused(*arguments: str, code: int = 2) -> str:
    """The sentence that a command ends with, having written nothing but a list of rows."""
    before = files(Path())
    done = CliRunner().invoke(main, arguments)
    after = files(Path())
    lists = {name for name in after if "/rejected-" in name and name not in before}
    assert {name: after[name] for name in after if name not in lists} == before
    return _sentence(done.exit_code, done.stdout, done.stderr, code)


def _refused_process(*arguments: str, **environment: str) -> str:
    """The same in a process of its own: whatever a library prints, too."""
    before = files(Path())
    done = _process(*arguments, **environment)
    assert files(Path()) == before
    return _sentence(done.returncode, done.stdout, done.stderr, 2)


def _process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [*IMAGEKILN, *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def _sentence(code: int, output: str, errors: str, wanted: int) -> str:
    assert (code, output) == (wanted, ""), errors
    assert errors.endswith(".\n")
    sentence, *items = errors.splitlines()
    assert all(item.startswith("  ") for item in items[:-1]), sentence
    assert len(errors) < 500
    return errors.rstrip("\n")


# The job file.


@pytest.mark.parametrize("command", ["plan", "run", "estimate"])
def test_every_command_that_takes_a_job_refuses_it_alike(command: str) -> None:
    assert _refused(command, _job()) == (
        f"prompts.parquet: no such file as {Path.cwd()}/prompts.parquet. Check `prompts`: it is "
        "relative to the working directory, not to the job file. Prompts themselves are written "
        "as `prompts: {texts: [...]}`."
    )


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "command",
    [
        ["run", "job.yaml"],
        ["demo"],
        ["tune", "job.yaml"],
        ["generate", "out/mine", "--shard", "0"],
        ["retry", "out/mine"],
        ["fetch", "out/mine"],
    ],
    ids=lambda command: command[0],
)
def test_commands_that_generate_say_what_to_install_before_anything_is_written(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(main, ["plan", _job(PROMPTS, run_id="mine")]).exit_code == 0
    monkeypatch.setitem(sys.modules, "torch", None)
    assert _refused(*command) == (
        "torch: not installed, and needed to generate images. "
        "Type: pip install 'imagekiln[generate]'."
    )


# The prompts.


def _whole() -> bytes:
    """A file of prompts without a fault."""
    return Path(write(Path("whole.parquet"), PROMPTS, write_page_checksum=True)).read_bytes()


@pytest.mark.parametrize("command", ["plan", "estimate"])
def test_columns_are_named_that_are_guessed_and_that_are_not_used(command: str) -> None:
    Path("prompts.csv").write_text("Caption,uid,seed,genre\na red circle,1,2,x\n", "utf-8")
    name = _job(prompts="prompts.csv", carry=["genre"])
    done = CliRunner().invoke(main, [command, name])
    assert done.exit_code == 0
    assert [line for line in done.stdout.splitlines() if "olumn" in line] == [
        "Read: 'Caption' as prompt. `columns` sets others, or null for one that is not meant.",
        "Not used: uid. Map settings in `columns`; `carry` keeps others.",
    ]
    done = CliRunner().invoke(main, [command, name, "--format", "json"])
    found = json.loads(done.stdout)
    assert (found["guessed_columns"], found["unused_columns"]) == ({"Caption": "prompt"}, ["uid"])


REFUSED: dict[str, tuple[Mapping[str, object], str]] = {
    "no row": (
        {"prompt": pa.array([], pa.string())},
        "prompts.parquet: has no rows. Check `prompts`.",
    ),
    "no prompt column": (
        {"title": ["a"], "seed": [1]},
        "prompts.parquet: has no column 'prompt' (it has title, seed). Set columns.prompt.",
    ),
    "no good row": (
        {"prompt": [None, "", " ", "x" * 5000]},
        "prompts.parquet: 4 of 4 rows were rejected:\n"
        "  prompt is blank (2 rows; the first is row 1, value '')\n"
        "  prompt is null (1 row; the first is row 0)\n"
        f"  prompt is over 4000 characters (1 row; the first is row 3, value '{'x' * 40}…')\n"
        "Rows are counted from 0, without a header. "
        "100 % of the rows are rejected, and the limit is 1 %. "
        "Correct the input, or raise limits.rejected_share.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_prompts_that_cannot_be_used(name: str) -> None:
    columns, told = REFUSED[name]
    sentence, _, listing = _refused("plan", _job(columns)).partition(" All are listed in ")
    assert sentence == told
    assert not listing or Path(listing).name.startswith("rejected-")


def test_names_of_nothing_are_refused_with_what_to_write() -> None:
    assert _refused("verify", "out") == (
        "out: holds no plan. Name the folder of a run, such as OUTPUT/RUN_ID: "
        "`imagekiln runs OUTPUT` lists them."
    )
    assert _refused("gallery", "s3://") == (
        "s3://: names no bucket or host. Write s3://bucket/a or https://host/a."
    )
    assert _refused("plan", _job(PROMPTS, model={"id": "bundled:shape"})) == (
        "bundled:shape: no such model folder. Write a folder, or a hub id as org/name."
    )
    assert "is the home folder of nobody" in _refused(
        "plan", _job(PROMPTS, output="~nobody-at-all/a")
    )


def test_minutes_without_a_figure() -> None:
    assert _refused("plan", _job(PROMPTS, shard={"minutes": 30})) == (
        "shard.minutes needs shard.seconds_per_image for this model; write it, or shard.images."
    )


# The model.


# The output.


def test_output_that_holds_another_plan() -> None:
    assert CliRunner().invoke(main, ["plan", _job(PROMPTS, run_id="mine")]).exit_code == 0
    assert _refused("plan", _job(run_id="mine", defaults={"steps": 3})) == (
        "out/mine: holds a plan with another `defaults`. Choose another run_id or output."
    )


@pytest.mark.parametrize(
    "command",
    [
        ["verify", "job.yaml"],
        ["reproduce", "job.yaml", "0" * 32],
        ["diff", "job.yaml", "job.yaml", "--to", "page"],
        ["generate", "job.yaml", "--shard", "0"],
    ],
    ids=lambda command: " ".join(command),
)
def test_file_where_a_run_should_be(command: list[str]) -> None:
    _job(PROMPTS)
    refusal = _refused(*command)
    assert refusal.startswith("job.yaml/")
    assert refusal.endswith("is a file, or lies within one. Name a folder.")


# Of which all fit on the small disk, but not what the plan says of them.
TINY_IMAGES = {"defaults": {"width": 8, "height": 8}, "encoding": {"kind": "webp"}}


def test_full_disk_is_worth_another_try() -> None:
    job = _job(PROMPTS, output="disk/out", **TINY_IMAGES)
    with small_disk(Path("disk"), 64):
        done = CliRunner().invoke(main, ["plan", job])
    told = _sentence(done.exit_code, done.stdout, done.stderr, 75)
    assert told.startswith("disk/out/test-")
    assert ": the disk is full, or can hold no more files. Free some space" in told


# Buckets.


@pytest.mark.parametrize("login", [Login("writer", "wrong"), Login("nobody", "at all")])
def test_wrong_credentials(
    s3_bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, login: Login
) -> None:
    log_in(s3_server, monkeypatch, login)
    for settings in ({"prompts": f"{s3_bucket}/prompts.parquet"}, {"output": f"{s3_bucket}/out"}):
        told = _refused("plan", _job(PROMPTS, **settings))
        assert told.startswith(f"{s3_bucket}/")
        assert "access was refused (" in told
        assert told.endswith("). Check credentials and permissions.")


def test_store_that_cannot_be_reached_is_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    once = {
        "connect_timeout": 1,
        "read_timeout": 1,
        "retries": {"mode": "standard", "total_max_attempts": 1},
    }
    monkeypatch.setitem(S3_OPTIONS, "config_kwargs", once)
    monkeypatch.setattr(filesystem, "S3FS_ATTEMPTS", 1)
    with hub(SHAPES) as gone:
        server = S3Server(gone.endpoint)
    log_in(server, monkeypatch)
    told = _refused("plan", _job(PROMPTS, output="s3://bucket/out"), code=75)
    assert told.startswith("s3://bucket/out/test-")
    assert told.endswith(". Run the command again.")


# All of it, as a process.


def test_process_prints_the_sentence_and_nothing_else() -> None:
    Path("prompts.parquet").write_bytes(_whole()[:-9])
    assert "is no whole Parquet file" in _refused_process("plan", _job())
    assert _refused_process("plan", "nowhere.yaml") == "nowhere.yaml: no such file. Check the name."


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from imagekiln.workflows.cli.main import main; "
        "main(['--help'], standalone_mode=False); "
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: " in done.stdout
    assert {*done.stderr.split()} & {*HEAVY} == set()
