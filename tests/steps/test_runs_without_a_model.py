"""A job without a model takes the images of a run as they are, for passes, scores and captions."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.start import generate
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.local import run as run_job
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.keys import CARD_KEY
from imagekiln.steps.runs.readback import read_image_pixels
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.image_models import FACTOR, captioner_folder, upscaler_folder
from tests.runs import finished, manifest_of, settings
from tests.tiny import tiny_model

KEPT = ("prompt", "seed", "steps", "guidance", "sampler")


def _settings(folder: Path, **changes: object) -> dict[str, object]:
    values = settings(folder, str(folder / "out"))
    del values["model"], values["defaults"]
    return {**values, "prompts": {"run": str(folder / "source")}, **changes}


def _pixels(uri: str) -> dict[str, npt.NDArray[np.uint8]]:
    rows = manifest_of(uri).to_pylist()
    return {row["id"]: read_image_pixels(open_store(uri), row) for row in rows}


def _run(folder: Path, **changes: object) -> str:
    return run_job(validate_job(_settings(folder, **changes)), NoProgress(), Stop()).uri


def test_images_are_those_of_the_source(tmp_path: Path, store_uri: str) -> None:
    source = finished(tmp_path / "source")
    copy = _run(tmp_path, output=store_uri, scores={"sharp": {"kind": "sharpness"}})
    planned = {row["image_id"]: row for row in manifest_of(source.uri).to_pylist()}
    rows = manifest_of(copy).to_pylist()
    assert {row["id"] for row in rows} == planned.keys()
    for row in rows:
        original = planned[row["id"]]
        assert [row[name] for name in KEPT] == [original[name] for name in KEPT]
        assert row["pixels_sha256"] == original["pixels_sha256"]
        assert row["image_id"] != original["image_id"]
        assert (row["model"], row["sharp"] is None) == ("none", False)
    assert verify(copy).ok == len(rows)
    card = open_store(copy).read(CARD_KEY).decode()
    assert "none: the images of 1 other run, not drawn again" in card


def test_passes_process_the_images_of_the_source(tmp_path: Path) -> None:
    source = finished(tmp_path / "source")
    passes = {
        "larger": {"kind": "upscale", "id": str(upscaler_folder())},
        "words": {"kind": "caption", "id": str(captioner_folder()), "max_tokens": 8},
    }
    processed = _run(tmp_path, passes=passes)
    sides = {row["image_id"]: row["width"] for row in manifest_of(source.uri).to_pylist()}
    rows = manifest_of(processed).to_pylist()
    for row in rows:
        assert row["width"] == FACTOR * sides[row["id"]]
        assert row["words"]
    again = reproduce(processed, rows[0]["image_id"], tmp_path / "again.png")
    assert again.equal == "bytes"


def test_templates_name_captions_and_keep_seeds(tmp_path: Path) -> None:
    source = finished(tmp_path / "source")
    prompts = {"run": source.uri, "template": "{{ prompt }}, sharp", "combinations": "all"}
    rows = manifest_of(_run(tmp_path, prompts=prompts)).to_pylist()
    originals = {row["image_id"]: row for row in manifest_of(source.uri).to_pylist()}
    for row in rows:
        original = originals[row["id"]]
        assert row["prompt"] == f"{original['prompt']}, sharp"
        assert (row["seed"], row["steps"]) == (original["seed"], original["steps"])


@pytest.mark.slow
def test_a_pass_may_draw_over_the_images_with_its_own_model(tmp_path: Path) -> None:
    source = finished(tmp_path / "source")
    model = {"id": str(tiny_model()), "dtype": "float32"}
    refine = {"kind": "refine", "model": model, "steps": 2, "guidance": 3.0, "strength": 0.5}
    refined = _run(tmp_path, model=None, passes={"detail": refine})
    before = {row["image_id"]: row["pixels_sha256"] for row in manifest_of(source.uri).to_pylist()}
    rows = manifest_of(refined).to_pylist()
    assert {row["id"] for row in rows} == before.keys()
    assert not {row["pixels_sha256"] for row in rows} & {*before.values()}


def test_images_that_are_only_copied_need_no_device(tmp_path: Path) -> None:
    finished(tmp_path / "source")
    job = validate_job(_settings(tmp_path, device="cuda", encoding={"kind": "webp"}))
    planned = make_plan(job)
    assert generate(planned.uri, 0) is not None
    assert estimate(job).defaults == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"prompts": "table.csv"},
            r"has no model; add one \(only a job over prompts.run",
        ),
        ({"prompts": {"run": "a"}, "output": "a/"}, "has prompts.run and output in one folder"),
        ({"model": {"id": "none", "dtype": "float16"}}, "and other settings of model; remove"),
        ({"defaults": {"steps": 3}}, "has no model, and defaults; remove that, or set model"),
        ({"speed": {"quantization": "fp8"}}, "has no model, and speed; remove"),
        ({"passes": {"x": {"kind": "refine"}}}, "and a refine pass without a model; remove"),
        (
            {"prompts": {"run": "a", "template": "b", "sweep": {"seed": [1, 2]}}},
            "has no model, and prompts.sweep; remove",
        ),
    ],
)
def test_settings_of_drawing_need_a_model(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        validate_job(_settings(tmp_path, **changes))
