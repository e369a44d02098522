"""Shortcuts are named, are part of every image's id, and are refused where they do not fit."""

import re
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.local import run
from imagekiln.steps.maintain.diff import SettingDifference, diff
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.models.families import require_pipeline_support
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.keys import CARD_KEY
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.runs.webui_text import format_parameters, model_label
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import eighths, families, models, runs
from tests.faults import manifests

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

IN_BFLOAT16 = {"id": str(models.folder("sd")), "dtype": "bfloat16"}
FP8 = {"quantization": "fp8"}
NVFP4 = {"quantization": "nvfp4"}
UNTIL_HALF = {"guidance_interval": [0, 0.5]}


def _planned(tmp_path: Path, kind: str = "sd", **changes: object) -> PlanResult:
    model = {"id": str(families.folder(kind)), "dtype": "float32"}
    return runs.planned(
        tmp_path, str(tmp_path / "out"), runs.PROMPTS[:4], **{"model": model, **changes}
    )


def _ids(planned: PlanResult) -> list[str]:
    table = read_shard_rows(open_store(planned.uri), planned.plan, 0)
    return [str(image_id) for image_id in table["image_id"].to_pylist()]


def test_every_shortcut_gives_every_image_another_id_and_speed_alone_none(tmp_path: Path) -> None:
    speeds = [{}, {"vae": "tiles", "guidance_interval": [0, 1]}, FP8, NVFP4, UNTIL_HALF]
    plain, same, in_fp8, in_nvfp4, until_half = (
        _ids(_planned(tmp_path, model=IN_BFLOAT16, speed=speed, run_id=f"r{place}"))
        for place, speed in enumerate(speeds)
    )
    assert plain == same
    assert len({*plain, *in_fp8, *in_nvfp4, *until_half}) == 16
    caches = [{"step_cache": {"interval": interval}} for interval in (2, 3)]
    every_other, every_third = (
        _ids(_planned(tmp_path, "flux", speed=speed, run_id=f"c{place}"))
        for place, speed in enumerate(caches)
    )
    assert not {*every_other} & {*every_third}


@pytest.mark.parametrize(
    ("speed", "sentence"),
    [
        (FP8, r"\.quantization is fp8, which needs bfloat16, but model\.dtype is float32"),
        (NVFP4, r"\.quantization is nvfp4, which needs bfloat16"),
        ({**FP8, "compile": "off"}, r"speed has quantization: fp8 and compile: off; .* remove one"),
        (
            {"guidance_interval": [0.6, 0.2]},
            r"guidance_interval is \[0\.6, 0\.2\]; write",
        ),
    ],
)
def test_a_shortcut_that_cannot_be_taken_is_refused_at_planning(
    speed: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=sentence):
        _planned(tmp_path, speed=speed)


@pytest.mark.parametrize(
    ("pipeline", "speed", "setting"),
    [
        ("Flux", UNTIL_HALF, "guidance_interval"),
        ("ZImage", UNTIL_HALF, "guidance_interval"),
        ("StableDiffusionXL", {"step_cache": {"interval": 3}}, "step_cache"),
    ],
)
def test_a_shortcut_that_the_pipeline_does_not_take_is_refused(
    pipeline: str, speed: dict[str, object], setting: str, tmp_path: Path
) -> None:
    model = {"id": "here", "dtype": "bfloat16"}
    job = runs.job(tmp_path / "prompts.parquet", "out", model=model, speed=speed)
    with pytest.raises(BadInput, match=rf"^speed\.{setting} does not work with {pipeline}Pipeline"):
        require_pipeline_support(job, f"{pipeline}Pipeline")


def test_a_job_with_limited_guidance_is_made_again_to_the_byte(tmp_path: Path) -> None:
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", runs.PROMPTS[:4])
    model = {"id": str(models.folder("sd")), "dtype": "float32"}
    done = run(
        runs.job(prompts, str(tmp_path / "out"), model=model, speed=UNTIL_HALF, part={"images": 2}),
        NoProgress(),
        Stop(),
    )
    (*_, last) = manifests(done.uri)
    assert last["shortcuts"] == "guidance_interval=0.0-0.5"
    reproduced = reproduce(done.uri, str(last["image_id"]), tmp_path / "again.png")
    assert (verify(done.uri).ok, reproduced.equal) == (4, "bytes")


@pytest.mark.slow
def test_a_job_with_a_shortcut_says_so_in_every_row_and_picture_and_is_made_again_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eighths.emulate(monkeypatch)
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", runs.PROMPTS[:4])
    job = runs.job(prompts, str(tmp_path / "out"), model=IN_BFLOAT16, speed=FP8)
    done = run(job, NoProgress(), Stop())
    assert (done.summary.ok, verify(done.uri).ok) == (4, 4)
    store = open_store(done.uri)
    rows = manifests(store.uri)
    assert {row["shortcuts"] for row in rows} == {"fp8"}
    assert "; shortcuts ` fp8 `" in store.read(CARD_KEY).decode()
    expected_text = format_parameters(runs.image_row().parameters, model_label(load_plan(store)))
    assert re.search(r", Shortcuts: fp8, Version: ", expected_text)
    reproduced = reproduce(done.uri, str(rows[0]["image_id"]), tmp_path / "again.png")
    assert reproduced.equal == "bytes"
    plain = run(runs.job(prompts, str(tmp_path / "out"), model=IN_BFLOAT16), NoProgress(), Stop())
    difference = diff(done.uri, plain.uri, str(tmp_path / "diff"))
    assert SettingDifference("speed.quantization", "fp8", "none") in difference.settings
