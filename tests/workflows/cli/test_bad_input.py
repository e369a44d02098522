"""Mistakes of users, through the command line: one sentence, exit code 2, and nothing written."""

import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner

from imagekiln.steps.runs.keys import EXPORT_MARK, commit_key
from imagekiln.steps.storage import filesystem
from imagekiln.steps.storage.filesystem import S3_OPTIONS
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from imagekiln.workflows.cli.main import main
from tests.hub import MODEL, REVISION, hub
from tests.jobs import Columns, files, write
from tests.mounts import make_read_only, small_disk
from tests.s3 import READER, Login, S3Server, log_in

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


def test_job_that_is_not_there() -> None:
    assert _refused("plan", "job.yaml") == "job.yaml: no such file. Check the name."


def test_unknown_job_field() -> None:
    _job(PROMPTS)
    with Path("job.yaml").open("a", encoding="utf-8") as file:
        file.write("defaults:\n  stepss: 3\n")
    assert _refused("plan", "job.yaml") == (
        "job.yaml:7: defaults.stepss is not a setting; write defaults.steps."
    )


@pytest.mark.parametrize("command", ["plan", "run", "estimate"])
def test_every_command_that_takes_a_job_refuses_it_alike(command: str) -> None:
    assert _refused(command, _job()) == (
        f"prompts.parquet: no such file as {Path.cwd()}/prompts.parquet. Check `prompts`: it is "
        "relative to the working directory, not to the job file."
    )


@pytest.mark.parametrize(
    "command", [["generate", "out/x", "--shard", "0"], ["aggregate", "out/x"], ["verify", "out/x"]]
)
def test_every_command_that_takes_a_run_says_where_there_is_none(command: list[str]) -> None:
    assert (
        _refused(*command)
        == "out/x: holds no plan. Run `imagekiln plan` first, or check the run's name."
    )


def test_export_where_a_run_should_be() -> None:
    commit = Path("out/x", commit_key(0))
    commit.parent.mkdir(parents=True)
    commit.write_bytes(EXPORT_MARK + b"1}")
    assert _refused("verify", "out/x") == "out/x: is an export. Name one of the runs it is from."


@pytest.mark.parametrize(
    "command",
    [["gallery", "s3://"], ["export", "s3://", "to"], ["forget", "s3://", "--id", "0" * 32]],
    ids=lambda command: command[0],
)
def test_address_without_a_bucket_is_no_folder(command: list[str]) -> None:
    assert _refused(*command) == "s3://: names no bucket. Write s3://bucket/folder."


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


def test_plan_without_a_job_asks_for_it() -> None:
    done = CliRunner().invoke(main, ["plan"])
    assert done.exit_code == 2
    assert done.stderr.endswith("Error: Missing argument 'JOB'.\n")
    assert "argo" not in done.stderr + CliRunner().invoke(main, ["plan", "--help"]).stdout


def test_check_that_does_not_exist_is_refused_at_planning() -> None:
    checks = [{"name": "mine", "entry": "tests.own_checks:missing"}]
    assert "does not import (AttributeError" in _refused(
        "plan", _job(PROMPTS, gates={"checks": checks})
    )


def test_check_that_was_not_tried_at_planning_is_noted() -> None:
    checks = [{"name": "mine", "entry": "nope.module:check"}]
    done = CliRunner().invoke(main, ["plan", _job(PROMPTS, gates={"checks": checks})])
    assert done.exit_code == 0
    assert "gates.checks: mine: nope.module:check does not import (ModuleNot" in done.stderr


# The prompts.


def _whole() -> bytes:
    """A file of prompts without a fault."""
    return Path(write(Path("whole.parquet"), PROMPTS, write_page_checksum=True)).read_bytes()


def _footer(content: bytes) -> int:
    """Where the footer of a Parquet file begins."""
    return len(content) - 8 - int(struct.unpack("<I", content[-8:-4])[0])


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


DAMAGED: dict[str, Callable[[], bytes]] = {
    "no bytes at all": lambda: b"",
    "cut in the middle": lambda: _whole()[: len(_whole()) // 2],
    "a bit of a page": lambda: _flipped(_whole(), _footer(_whole()) // 2),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_parquet(damage: str) -> None:
    content = DAMAGED[damage]()
    Path("prompts.parquet").write_bytes(content)
    told = _refused("plan", _job())
    assert told.startswith("prompts.parquet: is no whole Parquet file (")
    assert "). Write it again, or end its name in .csv, " in told


def test_prompts_that_are_compressed_are_called_so() -> None:
    Path("prompts.parquet").write_bytes(gzip.compress(b"prompt\na\n"))
    assert _refused("plan", _job()).startswith("prompts.parquet: is compressed with gzip. ")


def test_malformed_line_is_named() -> None:
    Path("prompts.csv").write_text("prompt,steps\na red circle,3,4\n", encoding="utf-8")
    sentence = _refused("plan", _job(prompts="prompts.csv"))
    assert sentence.startswith("prompts.csv: line 2 has 3 fields, and the header has 2.")


def test_column_that_is_taken_for_prompts_is_said() -> None:
    Path("prompts.csv").write_text("Caption\na red circle\n", encoding="utf-8")
    done = CliRunner().invoke(main, ["plan", _job(prompts="prompts.csv")])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1] == (
        "Read: 'Caption' as prompt. `columns` sets others, or null for one that is not meant."
    )


@pytest.mark.parametrize("command", ["plan", "estimate"])
def test_columns_are_named_that_are_guessed_and_that_are_not_used(command: str) -> None:
    Path("prompts.csv").write_text("Caption,uid,seed,genre\na red circle,1,2,x\n", "utf-8")
    name = _job(prompts="prompts.csv", carry=["genre"])
    done = CliRunner().invoke(main, [command, name])
    assert done.exit_code == 0
    assert [line for line in done.stdout.splitlines() if "olumn" in line] == [
        "Read: 'Caption' as prompt. `columns` sets others, or null for one that is not meant.",
        "Not used: uid. If one is an id or a setting, map it in `columns`; `carry` keeps it.",
    ]
    done = CliRunner().invoke(main, [command, name, "--format", "json"])
    found = json.loads(done.stdout)
    assert (found["guessed_columns"], found["unused_columns"]) == ({"Caption": "prompt"}, ["uid"])


def test_host_of_prompts_that_is_down_is_worth_another_try() -> None:
    with hub(SHAPES) as server:
        name = f"{server.endpoint}/prompts.parquet"
    sentence = _refused("plan", _job(prompts=name), code=75)
    assert sentence.startswith(f"{name}: storage did not answer (")
    assert sentence.endswith("). Run the command again.")


def test_pattern_that_names_nothing() -> None:
    assert (
        _refused("plan", _job(prompts="in/*.parquet"))
        == f"in/*.parquet: no such file as {Path.cwd()}/in/*.parquet. Check `prompts`: it is "
        "relative to the working directory, not to the job file."
    )


REFUSED: dict[str, tuple[Mapping[str, object], str]] = {
    "no row": (
        {"prompt": pa.array([], pa.string())},
        "prompts.parquet: has no rows. Check `prompts`.",
    ),
    "no prompt column": (
        {"title": ["a"], "seed": [1]},
        "prompts.parquet: has no column 'prompt' (it has title, seed). Set columns.prompt.",
    ),
    "prompts of another type": (
        {"prompt": [[1, 2]]},
        "prompts.parquet: column 'prompt' is list<element: int64>, not text. Write it as strings.",
    ),
    "seeds of another type": (
        {"prompt": ["a"], "seed": [b"1"]},
        "prompts.parquet: column 'seed' is binary, not integers. Write it as integers. "
        "To leave seed unread, set `columns: {seed: null}`.",
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
    "a bad row too many": (
        {"prompt": ["a"] * 90 + ["b"] * 10, "steps": [1] * 98 + [0] * 2},
        "prompts.parquet: 2 of 100 rows were rejected: "
        "steps is not between 1 and 1000 (2 rows; the first is row 98, value '0'). "
        "Rows are counted from 0, without a header. "
        "To leave steps unread, set `columns: {steps: null}`. "
        "2 % of the rows are rejected, and the limit is 1 %. "
        "Correct the input, or raise limits.rejected_share.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_prompts_that_cannot_be_used(name: str) -> None:
    columns, told = REFUSED[name]
    sentence, _, listing = _refused("plan", _job(columns)).partition(" All are listed in ")
    assert sentence == told
    assert not listing or Path(listing).name.startswith("rejected-")


def test_default_that_the_model_cannot_draw() -> None:
    assert _refused("plan", _job(PROMPTS, defaults={"width": 100})) == (
        "defaults.width is 100; this model needs a multiple of 8. Set it to 96."
    )


def test_minutes_without_a_figure() -> None:
    assert _refused("plan", _job(PROMPTS, shard={"minutes": 30})) == (
        "shard.minutes needs shard.seconds_per_image for this model; write it, or shard.images."
    )


# The model.


@pytest.mark.parametrize("name", ["nowhere", "/nowhere/sdxl"])
def test_unknown_model(name: str) -> None:
    assert _refused("plan", _job(PROMPTS, model={"id": name})) == (
        f"{name}: no such model folder. Write a folder, or a hub id as org/name."
    )


@pytest.mark.parametrize("name", ["bundled:nothing", "bundled:shape"])
def test_unknown_bundled_model_is_refused_with_those_that_exist(name: str) -> None:
    assert _refused("plan", _job(PROMPTS, model={"id": name})) == (
        f"{name}: no such bundled model. Write bundled:shapes."
    )


def test_folder_that_is_no_pipeline() -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    assert _refused("plan", _job(PROMPTS, model={"id": "model"})) == (
        "model: has no model_index.json, so it is not a diffusers pipeline. Choose another folder."
    )


def test_pickled_weights() -> None:
    shutil.copytree(SHAPES, "model")
    Path("model/unet/diffusion_pytorch_model.safetensors").rename(
        "model/unet/diffusion_pytorch_model.bin"
    )
    assert _refused("plan", _job(PROMPTS, model={"id": "model"})) == (
        "model: unet/diffusion_pytorch_model.bin is a pickle, which can run code. "
        "Convert it to safetensors."
    )
    Path("model.ckpt").write_bytes(b"\x80\x04.")
    assert _refused("plan", _job(PROMPTS, model={"id": "model.ckpt"})) == (
        "model.ckpt: is a pickle, which can run code. Choose the model's safetensors file, or "
        "convert it."
    )


@pytest.mark.slow
def test_revision_that_does_not_exist(tmp_path_factory: pytest.TempPathFactory) -> None:
    with hub(SHAPES) as there:
        environment = {
            "HF_ENDPOINT": there.endpoint,
            "HF_HOME": str(tmp_path_factory.mktemp("hub")),
        }
        job = _job(PROMPTS, model={"id": MODEL, "revision": "f" * 40})
        assert _refused_process("plan", job, **environment) == (
            f"{MODEL}: has no revision {'f' * 40}. Correct model.revision."
        )
        done = _process("estimate", job, "--set", f"model.revision={REVISION}", **environment)
        assert (done.returncode, done.stderr) == (0, "")


# The output.


def test_output_that_holds_another_plan() -> None:
    assert CliRunner().invoke(main, ["plan", _job(PROMPTS, run_id="mine")]).exit_code == 0
    assert _refused("plan", _job(run_id="mine", defaults={"steps": 3})) == (
        "out/mine: holds a plan with another `defaults`. Choose another run_id or output."
    )


def test_output_that_is_damaged() -> None:
    assert CliRunner().invoke(main, ["plan", _job(PROMPTS, run_id="mine")]).exit_code == 0
    Path("out/mine/plan.json").write_bytes(b"{}")
    assert _refused("plan", _job(run_id="mine")).startswith(
        "out/mine/plan.json: is not a readable plan ("
    )


def test_output_that_no_folder_can_have() -> None:
    assert _refused("plan", _job(PROMPTS, output="/proc/nope")) == (
        "/proc/nope: cannot create this folder. Choose another path."
    )


@pytest.mark.parametrize(
    "command",
    [
        ["verify", "job.yaml"],
        ["retry", "job.yaml"],
        ["aggregate", "job.yaml"],
        ["reproduce", "job.yaml", "0" * 32],
        ["diff", "job.yaml", "job.yaml", "--to", "page"],
        ["generate", "job.yaml", "--shard", "0"],
        ["generate", "job.yaml", "--shard", "0", "--workers", "2"],
    ],
    ids=lambda command: " ".join(command),
)
def test_file_where_a_run_should_be(command: list[str]) -> None:
    _job(PROMPTS)
    assert _refused(*command) == (
        "job.yaml: is a file. Name the folder of a run, such as OUTPUT/RUN_ID."
    )


def test_garbage_is_collected_in_an_output_alone() -> None:
    job = _job(PROMPTS, run_id="mine")
    assert _refused("gc", "nowhere") == "nowhere: no such folder. Check the name."
    assert _refused("gc", job) == ("job.yaml: is a file, or lies within one. Name a folder.")
    assert _refused("gc", ".") == (
        ".: holds no runs that this Imagekiln reads. Name the `output` of a job."
    )
    assert CliRunner().invoke(main, ["plan", job]).exit_code == 0
    assert _refused("gc", "out/mine") == (
        "out/mine: is a run, not the output that holds runs. Name out."
    )


def test_file_where_the_output_should_be() -> None:
    Path("out").write_bytes(b"")
    for output in ("out", "out/sub/a"):
        assert _refused("plan", _job(PROMPTS, output=output)) == (
            f"output: {output} is a file, or lies within one. Name a folder."
        )


@pytest.mark.parametrize("setting", ["output", "prompts"])
def test_home_folder_of_nobody(setting: str) -> None:
    name = "~nobody-of-this-name/images"
    assert _refused("plan", _job(PROMPTS, **{setting: name})) == (
        f"{name}: ~nobody-of-this-name is the home folder of nobody on this machine. "
        "Write the path from the root, or without `~`."
    )


# Of which all fit on the small disk, but not what the plan says of them.
TINY_IMAGES = {"defaults": {"width": 8, "height": 8}, "encoding": {"kind": "webp"}}


def test_output_without_permission_to_write() -> None:
    job = _job(PROMPTS, output="disk/out", **TINY_IMAGES)
    with small_disk(Path("disk"), 64) as disk:
        make_read_only(disk)
        told = _refused("plan", job)
    assert told.startswith("disk/out/test-")
    assert told.endswith(": cannot be used (Read-only file system). Choose another path.")


def test_full_disk_is_worth_another_try() -> None:
    job = _job(PROMPTS, output="disk/out", **TINY_IMAGES)
    with small_disk(Path("disk"), 64):
        done = CliRunner().invoke(main, ["plan", job])
    told = _sentence(done.exit_code, done.stdout, done.stderr, 75)
    assert told.startswith("disk/out/test-")
    assert ": the disk is full, or can hold no more files. Free some space" in told


# Buckets.


def _objects(bucket: str) -> list[str]:
    names: list[str] = fsspec.filesystem("s3", use_listings_cache=False).find(bucket)
    return names


@pytest.mark.parametrize("pattern", ["prompts.parquet", "*.parquet"])
def test_no_such_bucket_of_prompts(s3_bucket: str, pattern: str) -> None:
    name = f"{s3_bucket}-nowhere/{pattern}"
    told = _refused("plan", _job(prompts=name))
    assert told in (
        f"{name}: no such bucket. Create it, or correct the name.",
        f"{name}: no such file or bucket. Check `prompts`.",
    )


def test_no_such_object_of_prompts(s3_bucket: str) -> None:
    name = f"{s3_bucket}/prompts.parquet"
    assert _refused("plan", _job(prompts=name)) == f"{name}: no such file. Check the name."


def test_no_such_output_bucket(s3_bucket: str) -> None:
    told = _refused("plan", _job(PROMPTS, output=f"{s3_bucket}-nowhere/out"))
    assert told.startswith(f"{s3_bucket}-nowhere/out/test-")
    assert told.endswith("/plan.json: no such bucket. Create it, or correct the name.")


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


def test_credentials_that_may_only_read(
    s3_bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(s3_server, monkeypatch, READER)
    told = _refused("plan", _job(PROMPTS, output=f"{s3_bucket}/out"))
    assert ".parquet: access was refused (" in told
    assert _objects(s3_bucket) == []


def test_what_is_refused_leaves_no_object(s3_bucket: str) -> None:
    output = f"{s3_bucket}/out"
    assert "is not a setting" in _refused("plan", _job(PROMPTS, output=output, surprise=1))
    assert "no such model folder" in _refused(
        "plan", _job(PROMPTS, output=output, model={"id": "nowhere"})
    )
    assert _objects(s3_bucket) == []


def test_job_of_refused_rows_leaves_their_list_alone(s3_bucket: str) -> None:
    settings = _job({"prompt": [None]}, output=f"{s3_bucket}/out", run_id="night")
    assert f"{s3_bucket}/out/night/rejected-" in _refused("plan", settings)
    assert len(_objects(s3_bucket)) == 1


@pytest.mark.parametrize("endpoint", ["http://[::1", "http://hub:99999"])
def test_hub_that_is_no_url(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    # diffusers could not be imported with it, whichever model is drawn with.
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert _refused("run", _job(PROMPTS)) == (
        "HF_ENDPOINT: is not the URL of a hub. Write https://host, or unset it."
    )


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


def test_what_rows_are_drawn_with_is_said_where_the_job_does_not_say_it() -> None:
    Path("prompts.csv").write_text("prompt\na red circle\n", encoding="utf-8")
    name = _job(prompts="prompts.csv")
    drawn = "10 steps, guidance 3 (model card of bundled:shapes)"
    assert f"Draws {drawn}." in CliRunner().invoke(main, ["plan", name]).stdout.splitlines()
    assert f"drawn with:  {drawn}" in CliRunner().invoke(main, ["estimate", name]).stdout
    both = ["--set", "defaults.steps=4", "--set", "defaults.guidance=2"]
    assert "Draws" not in CliRunner().invoke(main, ["plan", name, *both]).stdout


def test_rows_of_a_sweep_are_not_said_to_be_drawn_with_what_it_sets() -> None:
    sweep: dict[str, object] = {"guidance": [1.5, 3]}
    name = _job(prompts={"template": "a {red|blue} circle", "sweep": sweep})
    drawn = "10 steps (model card of bundled:shapes), guidance of the sweep (the job)"
    assert f"drawn with:  {drawn}" in CliRunner().invoke(main, ["estimate", name]).stdout
    sweep["steps"] = [4, 8]
    name = _job(prompts={"template": "a {red|blue} circle", "sweep": sweep})
    assert "Draws" not in CliRunner().invoke(main, ["plan", name]).stdout
