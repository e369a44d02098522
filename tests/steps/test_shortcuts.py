"""Shortcuts: named where a reader looks, part of every image's id, and refused where a model cannot take them."""

import re
from pathlib import Path

import pytest

from imagekiln.steps import names, parameters, plan, shortcuts, tables
from imagekiln.steps.diff import Setting, diff
from imagekiln.steps.errors import BadInput
from imagekiln.steps.planning import Planned, make_plan
from imagekiln.steps.progress import Silent
from imagekiln.steps.reproduce import reproduce
from imagekiln.steps.run import run
from imagekiln.steps.speed import Speed
from imagekiln.steps.stop import Stop
from imagekiln.steps.storage import open_store
from imagekiln.steps.verify import verify
from tests import families, models, runs

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)

NAMED = [
    ({}, None),
    ({"vae": "slices", "compile": "off"}, None),
    ({"quantization": "fp8"}, "fp8"),
    ({"guidance_until": 0.6}, "guidance_until=0.6"),
    ({"reuse": 3}, "reuse=3"),
    ({"reuse": 3, "guidance_until": 0.6, "quantization": "fp8"}, "fp8,guidance_until=0.6,reuse=3"),
]


@pytest.mark.parametrize(("speed", "named"), NAMED)
def test_only_what_changes_pictures_is_named(speed: dict[str, object], named: str | None) -> None:
    assert shortcuts.told(Speed.model_validate(speed)) == named


def _planned(tmp_path: Path, kind: str = "sd", **changes: object) -> Planned:
    model = {"id": str(families.folder(kind)), "dtype": "float32"}
    return runs.planned(tmp_path, str(tmp_path / "out"), runs.PROMPTS[:4], **{"model": model, **changes})


def _ids(planned: Planned) -> list[str]:
    table = tables.read(open_store(planned.uri), names.shard(0))
    return [str(image_id) for image_id in table["image_id"].to_pylist()]


def test_every_shortcut_gives_every_image_another_id_and_speed_alone_none(tmp_path: Path) -> None:
    in_bfloat16 = {"id": str(families.folder("sd")), "dtype": "bfloat16"}
    plain, same, cut, less = (
        _ids(_planned(tmp_path, speed=speed, run_id=f"r{place}"))
        for place, speed in enumerate([{}, {"vae": "tiles"}, {"guidance_until": 0.5}, {"guidance_until": 0.25}])
    )
    assert plain == same
    assert len({*plain, *cut, *less}) == 12
    ours = [_ids(_planned(tmp_path, model=in_bfloat16, run_id=f"b{place}", speed=speed))
            for place, speed in enumerate([{}, {"quantization": "fp8"}])]  # fmt: skip
    assert len({*ours[0], *ours[1]}) == 8
    flux = [_ids(_planned(tmp_path, "flux", run_id=f"f{place}", speed={"reuse": place})) for place in (1, 2, 3)]
    assert len({image for each in flux for image in each}) == 12


@pytest.mark.parametrize(
    ("kind", "speed", "said"),
    [
        ("flux", {"guidance_until": 0.5}, r"speed\.guidance_until is not for Flux: it works with StableDiffusion, .*"
         r"StableDiffusionXL.*\. Set it to 1, or take such a model\."),
        ("qwen-image", {"guidance_until": 0.5}, r"is not for QwenImage"),
        ("sdxl", {"reuse": 3}, r"speed\.reuse is not for StableDiffusionXL: it works with Flux, .*QwenImage.* Set it"),
        ("sd", {"quantization": "fp8"}, r"\.quantization is fp8, which scales bfloat16, and model\.dtype is float32"),
    ],
)  # fmt: skip
def test_a_shortcut_that_is_none_for_the_model_is_refused_at_planning(
    kind: str, speed: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        _planned(tmp_path, kind, speed=speed)


@pytest.mark.parametrize(
    ("speed", "more", "said"),
    [
        ({"quantization": "fp8"}, {"loras": {"style": {"id": "style.safetensors"}}}, r"and model\.loras change layers"),
        ({"guidance_until": 0.5}, {"controlnet": {"id": "canny"}}, r"speed\.guidance_until does not go with model\."),
        ({}, {"refiner": {"id": "refiner"}, "controlnet": {"id": "canny"}}, r"model\.refiner does not go with model\."),
    ],
)
def test_a_shortcut_that_does_not_go_with_the_rest_of_the_job_is_refused(
    speed: dict[str, object], more: dict[str, object], said: str, tmp_path: Path
) -> None:
    model = {"id": "here", "dtype": "bfloat16", **more}
    with pytest.raises(BadInput, match=said):
        shortcuts.require(
            runs.job(tmp_path / "prompts.parquet", "out", model=model, speed=speed), "StableDiffusionPipeline"
        )


def test_fp8_without_compiling_is_refused_with_its_place(tmp_path: Path) -> None:
    said = r"speed has fp8, which without compiling is slower than bfloat16, and compile: off; remove one"
    with pytest.raises(BadInput, match=said):
        _planned(tmp_path, speed={"quantization": "fp8", "compile": "off"})


def test_a_job_with_a_shortcut_says_so_in_every_row_and_picture_and_is_made_again_to_the_byte(tmp_path: Path) -> None:
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", runs.PROMPTS[:4])
    defaults = {"steps": 4, "guidance": 3.0, "seed": 7}
    job = runs.job(prompts, str(tmp_path / "out"), speed={"guidance_until": 0.5}, defaults=defaults)
    done = run(job, Silent(), Stop())
    assert (done.summary.ok, verify(done.uri).ok) == (4, 4)
    store = open_store(done.uri)
    rows = tables.read(store, names.manifest(0)).to_pylist()
    assert {row["shortcuts"] for row in rows} == {"guidance_until=0.5"}
    assert "; shortcuts ` guidance_until=0.5 `" in store.read(names.CARD).decode()
    said = parameters.text(runs.image_row().pixels, parameters.of(plan.load(store)))
    assert re.search(r", Shortcuts: guidance_until=0\.5, Version: ", said)
    made = reproduce(done.uri, str(rows[0]["image_id"]), tmp_path / "again.png")
    assert made.equal == "bytes"
    plain = run(runs.job(prompts, str(tmp_path / "out"), defaults=defaults), Silent(), Stop())
    found = diff(done.uri, plain.uri, str(tmp_path / "diff"))
    assert Setting("speed.guidance_until", "0.5", "1.0") in found.settings


def test_images_made_by_a_shortcut_are_not_those_that_a_plain_job_skips(tmp_path: Path) -> None:
    prompts = runs.write_prompts(tmp_path / "prompts.parquet", runs.PROMPTS[:4])
    cut = {"guidance_until": 0.5}
    run(runs.job(prompts, str(tmp_path / "out"), speed=cut), Silent(), Stop())
    again = {"skip_existing": True, "run_id": "again"}
    plain = make_plan(runs.job(prompts, str(tmp_path / "out"), **again))
    assert plain.plan.counts.images == 4
    same = make_plan(runs.job(prompts, str(tmp_path / "out"), speed=cut, **again | {"run_id": "once-more"}))
    assert (same.plan.counts.images, same.plan.counts.existing_images) == (0, 4)
