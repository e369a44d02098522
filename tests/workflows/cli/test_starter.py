"""What a new user starts from: `init` and `manifests`."""

import re
from pathlib import Path

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
        ("Prömpts für Köln.csv", "pr-mpts-f-r-k-ln"),
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


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("mine")
    done = kiln("init", "--to", str(file))
    assert (done.exit_code, file.read_text()) == (2, "mine")
    assert "exists). Name another file" in done.stderr
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
