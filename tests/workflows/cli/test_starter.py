"""What a new user starts from: `init` and `manifests`."""

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from imagekiln.steps.job.reader import read_job
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.storage import filesystem
from imagekiln.workflows.cli.starter import job_name
from tests.jobs import image_rows
from tests.mounts import small_disk
from tests.workflows.cli.commands import kiln

NOWHERE = "/proc/no/such/folder"


@pytest.mark.parametrize(
    ("prompts", "name"),
    [
        ("Postcards 2026.csv", "postcards-2026"),
        ("s3://bucket/nights/*.parquet", "images"),
        ("s3://bucket/nights/", "nights"),
        ("a" * 39 + "-b.csv", "a" * 39),
        ("Prömpts für Köln.csv", "prompts-fur-koln"),
        ("東京.csv", "images"),
        ("line\u2028end.csv", "line-end"),
    ],
)
def test_init_writes_a_job_that_can_be_read(prompts: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    done = kiln("init", prompts, "--to", str(file), "--model", "bundled:shapes")
    assert done.exit_code == 0, done.output
    job = read_job(str(file))
    assert (job.name, job.prompts, job.model.id) == (name, prompts, "bundled:shapes")


def test_init_says_which_extra_the_prompts_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(filesystem.EXTRA_MODULES, "gcs", "no_such_module")
    done = kiln("init", "gs://bucket/p.csv", "--to", str(tmp_path / "job.yaml"))
    assert done.exit_code == 0
    assert "gs://bucket/p.csv: gs:// needs an extra: pip install 'imagekiln[gcs]'" in done.stderr


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".arrow"])
def test_init_writes_the_columns_of_prompts_that_exist(suffix: str, tmp_path: Path) -> None:
    values = ["u1", "a cat", "pets", "5"]
    names = ["uid", "Caption", "category", "random"]
    prompts = _write_prompts(tmp_path / f"p{suffix}", dict(zip(names, values, strict=True)))
    file = tmp_path / "job.yaml"
    done = kiln("init", str(prompts), "--to", str(file), "--model", "bundled:shapes")
    assert done.exit_code == 0
    assert "without effect on the images: category, random." in done.stderr
    assert "\ncolumns: {prompt: Caption, id: uid}\n" in file.read_text()
    assert "without effect on the images:\ncarry: [category, random]\n" in file.read_text()

    planned = kiln("plan", str(file), "--set", f"output={tmp_path / 'out'}")
    assert planned.exit_code == 0, planned.output
    assert "Planned 1 image in 1 shard" in planned.stdout


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".arrow"])
def test_init_suggests_an_id_where_prompts_repeat(suffix: str, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": "a cat", "group": "1", "sku": sku} for sku in ("x", "y")
    ]
    prompts = _write_prompts(tmp_path / f"p{suffix}", *rows)
    file = tmp_path / "job.yaml"
    done = kiln("init", str(prompts), "--to", str(file), "--model", "bundled:shapes")
    assert done.exit_code == 0
    assert "such as id: sku." in done.stderr
    assert "\n# columns: {prompt: prompt, id: sku}\n" in file.read_text()

    for name in ("prompt", "seed"):  # what tells rows apart already
        distinct = [{**row, name: index} for index, row in enumerate(rows)]
        prompts = _write_prompts(tmp_path / f"{name}{suffix}", *distinct)
        done = kiln("init", str(prompts), "--to", str(tmp_path / f"{name}.yaml"))
        assert "such as id" not in done.stderr


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "names",
    [
        ("Prompt", "Negative Prompt", "cfg", "num_inference_steps", "seed_value"),
        ("PROMPT", "negativePrompt", "CFG Scale", "Steps", "Seed"),
        ("text", "negative-prompt", "guidance_scale", "steps", " seed"),
    ],
)
def test_init_reads_the_names_that_others_give_to_settings(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    values = ("a cat", "blur", 4.5, 3, 7)
    prompts = _write_prompts(tmp_path / "p.parquet", dict(zip(names, values, strict=True)))
    assert kiln("init", str(prompts), "--to", str(file), "--model", "bundled:shapes").stderr == ""
    job = read_job(str(file), [f"output={tmp_path / 'out'}"])
    ours = ("prompt", "negative_prompt", "guidance", "steps", "seed")
    assert tuple(getattr(job.columns, name) for name in ours) == names
    row = image_rows(make_plan(job)).to_pylist()[0]
    assert tuple(row[name] for name in ours) == values


@pytest.mark.parametrize(
    ("names", "example"), [(("sku", "description"), "description"), (("a", "b"), "a")]
)
def test_init_says_that_no_column_looks_like_the_prompt(
    names: tuple[str, str], example: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    prompts = _write_prompts(tmp_path / "p.csv", dict.fromkeys(names, "a cat"))
    done = kiln("init", str(prompts), "--to", str(file), "--model", "bundled:shapes")
    setting = f"columns: {{prompt: {example}}}"
    assert done.stderr.splitlines()[0] == (
        f"No column of {prompts} looks like the prompt. Name it in {file}, such as {setting}"
    )
    file.write_text(file.read_text().replace(f"\n# {setting}", f"\n{setting}"))
    planned = kiln("plan", str(file), "--set", f"output={tmp_path / 'out'}")
    assert (planned.exit_code, planned.stdout[:15]) == (0, "Planned 1 image")


def test_init_does_not_guess_between_two_columns(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    columns = {"prompt": "a cat", "cfg": 4, "guidance_scale": 5}
    prompts = _write_prompts(tmp_path / "p.parquet", columns)
    done = kiln("init", str(prompts), "--to", str(file), "--model", "bundled:shapes")
    assert "without effect on the images: cfg, guidance_scale." in done.stderr


def test_init_carries_only_what_planning_accepts(tmp_path: Path) -> None:
    columns = {"prompt": "a cat", "text": "sun", "steps": 4, "model": "x", "on": "1", "a: {b}": "2"}
    prompts = _write_prompts(tmp_path / "day=monday" / "p.parquet", columns)
    file = tmp_path / "job.yaml"
    done = kiln("init", str(prompts.parent), "--to", str(file), "--model", "bundled:shapes")
    assert done.exit_code == 0, done.output
    job = read_job(str(file))
    assert job.columns.prompt == "prompt"
    assert job.carry == ("text", "on", "a: {b}", "day")
    assert kiln("plan", str(file), "--set", f"output={tmp_path / 'out'}").exit_code == 0


def test_init_says_that_prompts_do_not_exist_yet(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    done = kiln("init", "nope.csv", "--to", str(file))
    assert (done.exit_code, done.stderr) == (0, "nope.csv: no such file yet.\n")
    assert "# columns: {prompt: caption, id: uid}" in file.read_text()
    assert kiln("init", "s3://bucket/p.csv", "--to", str(tmp_path / "s3.yaml")).stderr == ""


def test_init_refuses_prompts_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and no footer")
    done = kiln("init", str(damaged), "--to", str(file))
    assert (done.exit_code, file.exists()) == (2, False)
    assert "damaged.parquet: is no whole Parquet file" in done.stderr


def test_init_does_not_wait_for_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.parquet")
    done = kiln("init", str(tmp_path / "*.parquet"), "--to", str(tmp_path / "job.yaml"))
    assert done.exit_code == 2
    assert "p.parquet: is a pipe or a device. Put a file in its place." in done.stderr


def _write_prompts(file: Path, *rows: dict[str, object]) -> Path:
    file.parent.mkdir(exist_ok=True)
    table = pa.Table.from_pylist([*rows])
    if file.suffix == ".parquet":
        pq.write_table(table, file)
    elif file.suffix == ".arrow":
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    elif file.suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, rows)))
    else:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        file.write_text("\n".join(lines))
    return file


def test_init_quotes_what_yaml_would_read_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    kiln("init", "a: {b}#'\"", "--to", str(file), "--model", "bundled:shapes")
    assert read_job(str(file)).prompts == "a: {b}#'\""


def test_init_writes_letters_of_any_language_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    kiln("init", "Grüße 東京.csv", "--to", str(file))
    assert 'prompts: "Grüße 東京.csv"' in file.read_text(encoding="utf-8")


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("mine")
    done = kiln("init", "--to", str(file))
    assert (done.exit_code, file.read_text()) == (2, "mine")
    assert "exists. Name another file" in done.stderr
    mistyped = kiln("init", "nope.csv", "--to", str(file)).stderr.splitlines()
    assert mistyped == ["nope.csv: no such file yet.", done.stderr.splitlines()[-1]]
    assert kiln("init", "--to", f"{NOWHERE}/job.yaml").exit_code == 2


def test_a_job_is_named_even_after_prompts_without_a_name() -> None:
    assert [job_name(text) for text in ("*", "/", "\N{CAT FACE}.csv")] == ["images"] * 3


def test_manifests_are_those_of_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    done = kiln("manifests", str(folder))
    assert done.exit_code == 0, done.output
    overlay = folder / "overlays" / "whole-cluster"
    assert f"Next: kubectl apply -k {overlay}, or your overlay" in done.stdout
    written = "".join(file.read_text() for file in folder.rglob("*.yaml"))
    assert not re.search(r"workflows/cluster|tests/", written)
    resources = yaml.safe_load((overlay / "kustomization.yaml").read_text())["resources"]
    assert all((overlay / resource).exists() for resource in resources)
    assert kiln("manifests", str(folder)).exit_code == 2
    assert kiln("manifests", NOWHERE).exit_code == 2


def test_manifests_are_whole_or_not_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        folder = disk / "cluster"
        done = kiln("manifests", str(folder))
        assert not folder.exists()
    assert done.exit_code == 75
    assert done.stderr == (
        f"{folder}: the disk is full, or can hold no more files. "
        "Free some space and run the command again.\n"
    )
