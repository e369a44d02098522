"""Every example of the docs runs: here, on an S3 server, or as YAML that Argo's schema accepts."""

import runpy
import shutil
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import Result

from tests.models import folder as model_folder
from tests.package.finished_job import call
from tests.pages import EXAMPLES, ROOT
from tests.workflows.argo_schemas import mistakes

QUICK = ("--set", "defaults.steps=2")
# In place of a model from the hub.
BUNDLED = (
    "--set", "model.id=bundled:shapes", "--set", "model.revision=null",
    "--set", "model.dtype=float32", "--set", "defaults.steps=1",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, as the working directory."""
    copy = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    monkeypatch.chdir(copy)
    return copy


def run(folder: Path, *words: str) -> Result:
    result = call(folder, "run", *words)
    assert result.exit_code == 0, result.output
    return result


def manifest(folder: Path, columns: str) -> list[tuple[object, ...]]:
    """Columns of all images, in the order of the ids of their rows."""
    files = folder / "out" / "*" / "manifest" / "*.parquet"
    with duckdb.connect() as connection:
        return connection.execute(f"select {columns} from '{files}' order by id").fetchall()


def test_every_example_is_listed() -> None:
    page = (ROOT / "docs" / "README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir()} - {"__pycache__"}
    assert {name for name in names if f"](examples/{name})" not in page} == set()


def test_minimal_job_makes_four_images(folder: Path) -> None:
    run(folder, "minimal.yaml", *QUICK)
    assert manifest(folder, "id, seed, status") == [
        ("black-star", 2, "ok"),
        ("green-triangle", 3, "ok"),
        ("orange-cross", 4, "ok"),
        ("red-circle", 1, "ok"),
    ]


@pytest.mark.slow
def test_images_of_finished_runs_are_scored_without_a_model(folder: Path) -> None:
    run(folder, "minimal.yaml", *QUICK)
    run(folder, "scored.yaml")
    (scored,) = folder.glob("scored/*/manifest/*.parquet")
    rows = pq.read_table(scored).to_pylist()
    assert sorted(row["seed"] for row in rows) == [1, 2, 3, 4]
    assert all(row["sharp"] > 0 for row in rows)


@pytest.mark.slow
def test_own_check_finds_the_backgrounds_that_the_prompts_ask_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    run(folder, "own-check.yaml")
    assert manifest(folder, "marks") == [([],)] * 4

    check = runpy.run_path(str(folder / "background_check.py"))["check"]
    spec = type("Spec", (), {"prompt": "a red circle on a blue background"})
    verdict = check(np.zeros((2, 2, 3), np.uint8), spec)
    assert verdict.reason == "the background is black, not blue"


@pytest.mark.slow
def test_several_models_are_compared_on_a_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load((folder / "minimal.yaml").read_text())
    values.setdefault("defaults", {})["steps"] = 1
    (folder / "minimal.yaml").write_text(yaml.safe_dump(values))
    arguments = ["several_models.py", "minimal.yaml", "bundled:shapes", str(model_folder("sd"))]
    monkeypatch.setattr("sys.argv", arguments)
    runpy.run_path("several_models.py", run_name="__main__")
    page = Path(capsys.readouterr().out.splitlines()[-1])
    assert page == Path("comparison/index.html")
    assert len(list((folder / "out").glob("model-*/_SUCCESS"))) == 2


def test_lora_sweep_draws_each_prompt_at_each_weight(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["lora_sweep.py", "prompts.csv", "sweep.parquet"])
    runpy.run_path("lora_sweep.py", run_name="__main__")
    run(folder, "lora-sweep.yaml", *QUICK)

    rows = manifest(folder, "split_part(id, '-', 1), weight, seed, loras, pixels_sha256")
    assert len(rows) == 16
    black = [row for row in rows if row[0] == "black"]
    assert [(row[1], row[2], row[3]) for row in black] == [
        (0.0, 2, None),
        (0.4, 2, "style:0.4"),
        (0.8, 2, "style:0.8"),
        (1.2, 2, "style:1.2"),
    ]
    assert len({row[4] for row in black}) == 4


@pytest.mark.slow
def test_second_night_makes_only_what_is_new(folder: Path, s3_bucket: str) -> None:
    places = ("--set", f"prompts={s3_bucket}/prompts/*.parquet", "--set", f"output={s3_bucket}/out")
    results = []
    for night, prompt in enumerate(("a red circle", "a blue star")):
        with fsspec.open(f"{s3_bucket}/prompts/{night}.parquet", "wb") as file:
            pq.write_table(pa.table({"prompt": [prompt]}), file)
        date = ("--date", f"2026-11-0{night + 1}")
        results.append(run(folder, "nightly-s3.yaml", *places, *BUNDLED, *date))
    assert "1 already in earlier runs" in results[1].output


@pytest.mark.parametrize(
    "words",
    [
        ("nightly-s3.yaml", "--cron", "30 1 * * *", "--timezone", "Europe/Berlin"),
        ("backfill.yaml", "--cron", "30 1 * * *"),
        ("mig.yaml",),
    ],
    ids=lambda words: words[0],
)
def test_example_for_a_cluster_is_rendered_as_argo_takes_it(
    words: tuple[str, ...], folder: Path
) -> None:
    result = call(folder, "render", *words)
    assert result.exit_code == 0, result.output
    for manifest_object in yaml.safe_load_all(result.stdout):
        assert mistakes(manifest_object) == []
