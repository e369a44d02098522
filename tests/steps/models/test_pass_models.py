"""Diffusion models of passes: what planning refuses and freezes, and what they do to image ids."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.generate.diffusion.pipeline import fetch_run_models
from imagekiln.steps.models.passes import iter_pass_jobs
from imagekiln.steps.models.resolve import NamedRevision, ResolvedModel, resolve_model
from imagekiln.steps.plan.step import PlanResult, make_plan
from imagekiln.steps.runs.keys import rejected_key
from imagekiln.steps.runs.plan import plan_to_json
from imagekiln.steps.runs.tables import read_table
from imagekiln.steps.storage import open_store
from tests import families
from tests.hub import MODEL, REVISION, Hub, serving_model
from tests.models import SHAPES, folder
from tests.refiners import refiner_folder
from tests.runs import job, planned

LATER = "f" * 40
REFINE: dict[str, object] = {"kind": "refine", "strength": 0.5}


def refine(model: object = None, **more: object) -> dict[str, object]:
    """A pass that draws with this model, by default a tiny SDXL in float32."""
    own = {"id": str(folder("sdxl")), "dtype": "float32"} if model is None else model
    return {**REFINE, "model": own, **more}


def resolved(passes: dict[str, object], **changes: object) -> ResolvedModel:
    """The models of a job with these passes."""
    return resolve_model(job(Path("prompts.parquet"), "out", passes=passes, **changes))


def plan_of(scratch: Path, rows: list[dict[str, object]], **changes: object) -> PlanResult:
    """A planned run of these rows."""
    return planned(scratch, str(scratch / "out"), rows, **changes)


def copy_of(source: Path, target: Path) -> Path:
    """A copy of a model, to be changed."""
    return Path(shutil.copytree(source, target))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the bundled model, and an empty cache."""
    with serving_model(SHAPES, tmp_path, monkeypatch) as hub_server:
        yield hub_server


def test_the_model_of_a_pass_is_frozen_with_its_class_and_multiple() -> None:
    model = resolved({"detail": refine({"id": str(families.folder("flux")), "dtype": "float32"})})
    facts = model.passes["detail"].model
    assert facts is not None
    assert facts.pipeline == "FluxPipeline"
    assert facts.digest == model.passes["detail"].digest
    assert model.facts.pipeline == "StableDiffusionPipeline"
    [(name, pass_job)] = iter_pass_jobs(model.job)
    assert (name, pass_job.model.dtype, pass_job.passes) == ("detail", "float32", {})


def test_what_changes_pixels_changes_ids_and_nothing_else_does(tmp_path: Path) -> None:
    other = copy_of(folder("sdxl"), tmp_path / "other")
    config = other / "scheduler" / "scheduler_config.json"
    config.write_text(config.read_text() + "\n")
    variants: list[dict[str, object]] = [
        REFINE,
        refine(),
        refine({"id": str(folder("sdxl")), "dtype": "bfloat16"}),
        refine({"id": str(folder("sd")), "dtype": "float32"}),
        refine({"id": str(other), "dtype": "float32"}),
        refine(sampler="euler"),
        refine(steps=8),
        {**REFINE, "sampler": "euler"},
    ]
    keys = [resolved({"a": settings}).key_extras for settings in variants]
    assert len(set(keys)) == len(variants)
    elsewhere = copy_of(folder("sdxl"), tmp_path / "copy")
    same = resolved({"renamed": refine({"id": str(elsewhere), "dtype": "float32"})})
    assert same.key_extras == keys[1]


@pytest.mark.slow
def test_a_commit_is_frozen_where_a_pass_names_a_branch(server: Hub, tmp_path: Path) -> None:
    detail = refine({"id": MODEL, "dtype": "float32"})
    result = plan_of(tmp_path, [{"prompt": "x"}], passes={"detail": detail}, run_id="night")
    content = json.loads(plan_to_json(result.plan))
    assert content["job"]["passes"]["detail"]["model"]["revision"] == REVISION
    assert content["passes"]["detail"]["digest"] == f"{MODEL}@{REVISION}"
    frozen = NamedRevision("passes.detail.model", MODEL, "main", REVISION)
    assert result.plan.revisions == (frozen,)
    server.names["main"] = LATER
    again = make_plan(
        job(
            tmp_path / "prompts.parquet",
            str(tmp_path / "out"),
            passes={"detail": detail},
            run_id="night",
        )
    )
    assert (again.adopted, again.plan) == (True, result.plan)
    _fetch(result.uri, HF_ENDPOINT=server.endpoint, HF_HOME=str(tmp_path / "home"))
    assert any(name.endswith(".safetensors") for name in server.requested_files)


def _fetch(uri: str, **environment: str) -> None:
    """Fetch the models of a run, in a process that knows the hub from its start."""
    command = [sys.executable, "-m", "imagekiln", "fetch", uri]
    subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)


def test_a_fetch_refuses_another_model_than_planned(tmp_path: Path) -> None:
    copy = copy_of(folder("sdxl"), tmp_path / "model")
    passes = {"x": refine({"id": str(copy), "dtype": "float32"})}
    result = plan_of(tmp_path, [{"prompt": "x"}], passes=passes)
    assert fetch_run_models(result.uri) == str(folder("sd"))
    (copy / "unet" / "config.json").write_text("{}")
    with pytest.raises(BadInput, match=r"passes\.x: .* is not the model that the run"):
        fetch_run_models(result.uri)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"id": "./nowhere"}, r"\./nowhere: no such model folder"),
        (
            {"id": str(folder("sdxl")), "config": str(folder("sd"))},
            r"model\.config is for a model in one",
        ),
        ({"id": str(families.folder("sana"))}, r"SanaPipeline has no image-to-image mode"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_its_pass(
    model: dict[str, object], sentence: str
) -> None:
    with pytest.raises(KilnError, match=rf"passes\.x: .*{sentence}") as error:
        resolved({"x": refine(model)})
    assert error.value.exit_code == 2


def test_a_model_that_draws_over_images_alone_is_for_passes_alone() -> None:
    refiner = {"id": str(refiner_folder()), "dtype": "float32"}
    facts = resolved({"x": refine(refiner)}).passes["x"].model
    assert facts is not None
    assert facts.pipeline == "StableDiffusionXLImg2ImgPipeline"
    with pytest.raises(BadInput, match="needs input other than text"):
        resolved({}, model=refiner)


def test_sizes_are_multiples_of_those_of_the_pass_model() -> None:
    coarse = {"id": str(families.folder("qwen-image")), "dtype": "float32"}
    model = resolved({"x": refine(coarse), "y": refine(scale=1.25)})
    facts = model.passes["x"].model
    assert facts is not None
    multiple = facts.size_multiple
    assert multiple > model.facts.size_multiple
    rounded, scaled = model.pass_sizes.sizes_by_pass((multiple + 8, 3 * multiple))
    assert rounded[0] % multiple == 0
    assert scaled[0] % 8 == 0


def test_samplers_that_the_pass_model_lacks_are_refused(tmp_path: Path) -> None:
    flow = {"id": str(folder("flux")), "dtype": "float32"}
    rows: list[dict[str, object]] = [
        {"prompt": "a", "sampler": sampler} for sampler in ("default", "euler")
    ]
    result = plan_of(tmp_path, rows, passes={"x": refine(flow)}, limits={"rejected_share": 0.5})
    (rejected,) = read_table(open_store(result.uri), rejected_key(result.plan.rejected)).to_pylist()
    assert rejected["reason"].startswith("does not fit the model of the pass x: with the model's ")
    both = plan_of(tmp_path / "set", rows, passes={"x": refine(flow, sampler="flow_euler")})
    assert both.plan.counts.images == 2
    with pytest.raises(BadInput, match=r"passes\.x\.sampler is euler; with the model's Flow"):
        plan_of(tmp_path / "d", rows, passes={"x": refine(flow)}, defaults={"sampler": "euler"})
    with pytest.raises(BadInput, match=r"passes\.x\.sampler is euler; with the model's Flow"):
        plan_of(tmp_path / "s", rows, passes={"x": refine(flow, sampler="euler")})
