"""The models of passes: what planning refuses and freezes, and what they do to image ids."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.generate.diffusion.pipeline import fetch_run_models
from imagekiln.steps.models.passes import PassFacts, PassSizes, iter_pass_jobs, pass_references
from imagekiln.steps.models.resolve import NamedRevision, ResolvedModel, resolve_model
from imagekiln.steps.models.transformers_models import fetch_planned_files
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.keys import rejected_key
from imagekiln.steps.runs.plan import plan_to_json
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.storage import open_store
from tests import families
from tests.hub import MODEL, REVISION, serving_model
from tests.image_models import FACTOR, captioner_folder, upscaler_folder
from tests.models import SHAPES, folder
from tests.refiners import refiner_folder
from tests.runs import job, planned

REFINE: dict[str, object] = {"kind": "refine", "strength": 0.5}


def tiny(source: object, dtype: str = "float32") -> dict[str, object]:
    """A model, by default in float32."""
    return {"id": str(source), "dtype": dtype}


def refine(model: object = None, **more: object) -> dict[str, object]:
    """A pass that draws with this model, by default a tiny SDXL in float32."""
    return {**REFINE, "model": tiny(folder("sdxl")) if model is None else model, **more}


def upscale(**more: object) -> dict[str, object]:
    """A pass that enlarges."""
    return {"kind": "upscale", "id": str(upscaler_folder()), **more}


def caption(**more: object) -> dict[str, object]:
    """A pass that describes."""
    return {"kind": "caption", "id": str(captioner_folder()), "max_tokens": 8, **more}


def resolved(passes: Mapping[str, object], **changes: object) -> ResolvedModel:
    """The models of a job with these passes."""
    return resolve_model(job(Path("prompts.parquet"), "out", passes=passes, **changes))


def plan_of(scratch: Path, rows: list[dict[str, object]], **changes: object) -> PlanResult:
    """A planned run of these rows."""
    return planned(scratch, str(scratch / "out"), rows, **changes)


def copy_of(source: Path, target: Path, **config: object) -> Path:
    """A copy of a model, with other values in its config.json."""
    shutil.copytree(source, target)
    if config:
        path = target / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return target


def test_the_files_of_each_pass_are_frozen(tmp_path: Path) -> None:
    copy = copy_of(captioner_folder(), tmp_path / "copy")
    flux = refine(tiny(families.folder("flux")))
    passes = {"big": upscale(), "own": REFINE, "flux": flux, "words": caption(id=str(copy))}
    model = resolved(passes)
    assert [*model.passes] == ["big", "words", "flux"]
    assert (model.passes["big"].scale, model.passes["words"].scale) == (FACTOR, 1)
    facts = model.passes["flux"].model
    assert facts is not None
    assert (facts.pipeline, facts.digest) == ("FluxPipeline", model.passes["flux"].digest)
    assert model.facts.pipeline == "StableDiffusionPipeline"
    [(name, pass_job)] = iter_pass_jobs(model.job)
    assert (name, pass_job.model.dtype, pass_job.passes) == ("flux", "float32", {})

    [_, (setting, reference)] = pass_references(model.job)
    digest = model.passes["words"].digest
    assert fetch_planned_files(setting, reference, digest) == copy
    (copy / "model.safetensors").write_bytes(b"x")
    with pytest.raises(BadInput, match=r"passes\.words: .* is not what the run was planned with"):
        fetch_planned_files(setting, reference, digest)


def test_every_setting_of_a_pass_but_its_name_changes_ids(tmp_path: Path) -> None:
    other = copy_of(upscaler_folder(), tmp_path / "other", hidden_act="relu")
    copy = copy_of(folder("sdxl"), tmp_path / "sdxl")
    variants: list[dict[str, object]] = [
        {},
        {"a": upscale()},
        {"a": upscale(id=str(other))},
        {"a": REFINE},
        {"a": REFINE | {"strength": 0.4}},
        {"a": REFINE | {"steps": 8}},
        {"a": REFINE | {"guidance": 2.0}},
        {"a": REFINE | {"scale": 2}},
        {"a": REFINE | {"sampler": "euler"}},
        {"a": refine()},
        {"a": refine(tiny(folder("sdxl"), "bfloat16"))},
        {"a": refine(tiny(folder("sd")))},
        {"a": refine(steps=8)},
        {"a": caption()},
        {"a": caption(max_tokens=9)},
        {"a": upscale(), "b": REFINE},
        {"b": REFINE, "a": upscale()},
    ]
    keys = {resolved(passes).key_extras for passes in variants}
    assert len(keys) == len(variants)
    for one, same in [
        ({"a": upscale(), "b": REFINE}, {"x": upscale(), "y": REFINE}),
        ({"a": REFINE | {"scale": 2}}, {"a": REFINE | {"scale": 2.0}}),
        ({"a": refine()}, {"renamed": refine(tiny(copy))}),
    ]:
        assert resolved(one).key_extras == resolved(same).key_extras


@pytest.mark.slow
def test_a_commit_is_frozen_where_a_pass_names_a_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = {"detail": refine(tiny(MODEL))}
    with serving_model(SHAPES, tmp_path, monkeypatch) as server:
        result = plan_of(tmp_path, [{"prompt": "x"}], passes=passes, run_id="night")
        content = json.loads(plan_to_json(result.plan))
        assert content["job"]["passes"]["detail"]["model"]["revision"] == REVISION
        assert content["passes"]["detail"]["digest"] == f"{MODEL}@{REVISION}"
        frozen = NamedRevision("passes.detail.model", MODEL, "main", REVISION)
        assert result.plan.revisions == (frozen,)
        server.names["main"] = "f" * 40
        prompts = tmp_path / "prompts.parquet"
        again = make_plan(job(prompts, str(tmp_path / "out"), passes=passes, run_id="night"))
        assert (again.adopted, again.plan) == (True, result.plan)
        # In a process that knows the hub from its start.
        hub = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "imagekiln", "fetch", result.uri]
        subprocess.run(command, env=os.environ | hub, check=True, capture_output=True)
        assert any(name.endswith(".safetensors") for name in server.requested_files)


def test_a_fetch_refuses_another_model_than_planned(tmp_path: Path) -> None:
    copy = copy_of(folder("sdxl"), tmp_path / "model")
    result = plan_of(tmp_path, [{"prompt": "x"}], passes={"x": refine(tiny(copy))})
    assert fetch_run_models(result.uri) == str(folder("sd"))
    (copy / "unet" / "config.json").write_text("{}")
    with pytest.raises(BadInput, match=r"passes\.x: .* is not the model that the run"):
        fetch_run_models(result.uri)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (refine({"id": "./nowhere"}), r"\./nowhere: no such model folder"),
        (
            refine({"id": str(folder("sdxl")), "config": str(folder("sd"))}),
            r"model\.config is for a model in one",
        ),
        (refine(tiny(families.folder("sana"))), r"SanaPipeline has no image-to-image mode"),
        (upscale(id=str(captioner_folder())), r"upscale needs swin2sr"),
        (upscale(id="./nowhere"), r"\./nowhere is not a folder"),
        (caption(id=str(upscaler_folder())), r"caption needs blip or git"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_its_pass(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(KilnError, match=rf"passes\.x: .*{sentence}") as error:
        resolved({"x": settings})
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_pickles_and_code_are_refused(tmp_path: Path) -> None:
    coded = copy_of(upscaler_folder(), tmp_path / "coded", auto_map={"AutoModel": "x.Y"})
    with pytest.raises(BadInput, match=r"passes\.x: .* code of its own"):
        resolved({"x": upscale(id=str(coded))})
    pickled = copy_of(upscaler_folder(), tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(BadInput, match=r"passes\.x: .* has no .*safetensors, and pickles"):
        resolved({"x": upscale(id=str(pickled))})


def test_a_model_that_draws_over_images_alone_is_for_passes_alone() -> None:
    refiner = tiny(refiner_folder())
    facts = resolved({"x": refine(refiner)}).passes["x"].model
    assert facts is not None
    assert facts.pipeline == "StableDiffusionXLImg2ImgPipeline"
    with pytest.raises(BadInput, match="needs input other than text"):
        resolved({}, model=refiner)


def test_sizes_follow_each_pass() -> None:
    passes = {
        "big": upscale(),
        "half": REFINE | {"scale": 0.3},
        "larger": REFINE | {"scale": 2},
        "words": caption(),
    }
    parsed = job(Path("prompts.parquet"), "out", passes=passes)
    facts = {"big": PassFacts("", 4), "words": PassFacts("")}
    sizes = PassSizes.of(parsed, facts, 8)
    assert sizes.sizes_by_pass((16, 24)) == [(64, 96), (16, 32), (32, 64), (32, 64)]
    assert sizes.final((16, 24)) == (32, 64)
    assert sizes.work((16, 24), 10) == 10 * 0.5 * (16 * 32 + 32 * 64)
    tiny_scale = job(Path("p"), "out", passes={"x": REFINE | {"scale": 0.125}})
    assert PassSizes.of(tiny_scale, {}, 8).final((16, 512)) == (8, 64)


def test_sizes_are_multiples_of_those_of_the_pass_model() -> None:
    model = resolved({"x": refine(tiny(families.folder("qwen-image"))), "y": refine(scale=1.25)})
    facts = model.passes["x"].model
    assert facts is not None
    multiple = facts.size_multiple
    assert multiple > model.facts.size_multiple
    rounded, scaled = model.pass_sizes.sizes_by_pass((multiple + 8, 3 * multiple))
    assert rounded[0] % multiple == 0
    assert scaled[0] % 8 == 0


def test_samplers_that_the_pass_model_lacks_are_refused(tmp_path: Path) -> None:
    flow = tiny(folder("flux"))
    rows: list[dict[str, object]] = [
        {"prompt": "a", "sampler": sampler} for sampler in ("default", "euler")
    ]
    result = plan_of(tmp_path, rows, passes={"x": refine(flow)}, limits={"rejected_share": 0.5})
    (rejected,) = read_table(open_store(result.uri), rejected_key(result.plan.rejected)).to_pylist()
    assert rejected["reason"].startswith("does not fit the model of the pass x: with the model's ")
    both = plan_of(tmp_path / "set", rows, passes={"x": refine(flow, sampler="flow_euler")})
    assert both.plan.counts.images == 2
    with pytest.raises(BadInput, match=r"passes\.x\.sampler is euler; with the model's Flow"):
        plan_of(tmp_path / "s", rows, passes={"x": refine(flow, sampler="euler")})
