"""What a new user starts from: `init` and `manifests`."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from imagekiln.steps.job.reader import read_job
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
        ("a: {b}#'\"", "a-b"),
    ],
)
def test_init_writes_a_job_that_can_be_read(prompts: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    done = kiln("init", prompts, "--to", str(file), "--model", "bundled:shapes")
    assert done.exit_code == 0, done.output
    job = read_job(str(file))
    assert (job.name, job.prompts, job.model.id) == (name, prompts, "bundled:shapes")


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".arrow"])
def test_init_writes_the_columns_of_prompts_that_exist(suffix: str, tmp_path: Path) -> None:
    values = ["u1", "a cat", "pets", "5", "7", "30"]
    names = ["uid", "Caption", "category", "random", "seed", "Steps"]  # settings are not carried
    prompts = _write_prompts(tmp_path / f"p{suffix}", dict(zip(names, values, strict=True)))
    file = tmp_path / "job.yaml"
    done = kiln("init", str(prompts), "--to", str(file), "--model", "bundled:shapes")
    assert done.exit_code == 0
    assert "\ncolumns: {prompt: Caption, steps: Steps}\n" in file.read_text()
    assert "without effect on the images:\n# carry: [uid, category, random]\n" in file.read_text()

    planned = kiln("plan", str(file), "--set", f"output={tmp_path / 'out'}")
    assert planned.exit_code == 0, planned.output
    assert "Planned 1 image in 1 shard" in planned.stdout


def test_init_says_that_no_column_seems_to_hold_prompts(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    prompts = _write_prompts(tmp_path / "p.csv", {"animal": "cat", "sku": "a"})
    done = kiln("init", str(prompts), "--to", str(file), "--model", "bundled:shapes")
    assert done.stderr == (
        f"No column of {prompts} seems to hold prompts. Name the one with the prompts in {file}.\n"
    )
    setting = "columns: {prompt: animal}"
    file.write_text(file.read_text().replace(f"\n# {setting}", f"\n{setting}"))
    planned = kiln("plan", str(file), "--set", f"output={tmp_path / 'out'}")
    assert (planned.exit_code, planned.stdout[:15]) == (0, "Planned 1 image")


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


def test_init_reads_all_files_of_a_folder(tmp_path: Path) -> None:
    _write_prompts(tmp_path / "in/1.csv", {"Caption": "a red hat", "id": "1", "note": "x"})
    _write_prompts(tmp_path / "in/2.csv", {"Caption": "a blue hat", "id": "1"})
    file = tmp_path / "job.yaml"
    kiln("init", str(tmp_path / "in"), "--to", str(file), "--model", "bundled:shapes")
    assert "\ncolumns: {prompt: Caption, id: id}\n" in file.read_text()


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


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("mine")
    done = kiln("init", "--to", str(file))
    assert (done.exit_code, file.read_text()) == (2, "mine")
    assert "exists. Name another file" in done.stderr
    mistyped = kiln("init", "nope.csv", "--to", str(file)).stderr.splitlines()
    assert mistyped == ["nope.csv: no such file yet.", done.stderr.splitlines()[-1]]
    assert kiln("init", "--to", f"{NOWHERE}/job.yaml").exit_code == 2


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
