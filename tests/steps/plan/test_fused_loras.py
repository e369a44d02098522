"""Which LoRAs a plan fuses: those of the job, if no column of the prompts can name others."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.image_sql import model_key
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.image import ImageParameters
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.storage import open_store
from tests import models, runs, safetensors
from tests.identity import compute_image_id

ROW = {"prompt": "a red circle", "id": "a", "seed": 7}
OTHER = {"prompt": "a blue square", "id": "b", "seed": 8}


def _settings(folder: Path, default: str = "style", **model: object) -> dict[str, object]:
    file = safetensors.write(folder / "style.safetensors")
    loras = {"style": {"id": str(file)}}
    return {
        "model": {"id": str(models.folder("sd")), "dtype": "float32", "loras": loras, **model},
        "defaults": {"steps": 2, "guidance": 3.0, "loras": default},
    }


def _planned(folder: Path, *rows: dict[str, object], **changes: object) -> PlanResult:
    settings = {**_settings(folder), **changes}
    return runs.planned(folder, str(folder / "out"), rows or (ROW,), **settings)


def _ids(planned: PlanResult) -> list[str]:
    table = read_shard_rows(open_store(planned.uri), planned.plan, 0)
    return [str(image_id) for image_id in table["image_id"].to_pylist()]


def test_what_is_fused_is_frozen_in_the_plan_and_in_each_id(tmp_path: Path) -> None:
    planned = _planned(tmp_path)
    plan = load_plan(open_store(planned.uri))
    assert plan.fused_loras == "style:1"
    (row,) = read_shard_rows(open_store(planned.uri), plan, 0).to_pylist()
    assert row["loras"] == "style:1"
    key = model_key(plan.model.digest, "float32", "fused-loras")
    digests = {name: facts.sha256 for name, facts in plan.loras.items()}
    parameters = ImageParameters(*(row[name] for name in ImageParameters.__slots__))
    assert row["image_id"] == compute_image_id(key, parameters, digests)


def test_a_column_decides_whatever_its_cells_hold(tmp_path: Path) -> None:
    empty, equal, mixed = (
        _planned(tmp_path / name, *rows)
        for name, rows in {
            "empty": [{**ROW, "loras": None}],
            "equal": [{**ROW, "loras": "style:1"}],
            "mixed": [{**ROW, "loras": "style"}, {**OTHER, "loras": ""}],
        }.items()
    )
    assert {empty.plan.fused_loras, equal.plan.fused_loras, mixed.plan.fused_loras} == {None}
    assert _ids(empty) == _ids(equal) == _ids(mixed)[:1]
    assert _ids(empty) != _ids(_planned(tmp_path / "fused"))


IN_FP8 = {"speed": {"quantization": "fp8"}}


def test_fp8_goes_with_what_is_fused(tmp_path: Path) -> None:
    planned = _planned(tmp_path, **_settings(tmp_path, dtype="bfloat16"), **IN_FP8)
    assert planned.plan.fused_loras == "style:1"


@pytest.mark.parametrize("verb", [make_plan, estimate])
def test_fp8_is_refused_with_loras_by_row_and_the_sentence_says_how_to_have_both(
    verb: models.Untyped, tmp_path: Path
) -> None:
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", [{**ROW, "loras": "style"}])
    settings = _settings(tmp_path, dtype="bfloat16")
    job = runs.job(prompts, str(tmp_path / "out"), **settings, **IN_FP8)
    with pytest.raises(BadInput) as caught:
        verb(job)
    assert str(caught.value) == (
        "speed.quantization is fp8, which works with LoRAs only if all rows share them. Name "
        "them in defaults.loras, and remove the column loras from the prompts or sweep, or "
        "set columns.loras to null. Or set speed.quantization to none."
    )
