"""A job's model is read once for a command, at the commit of the branch that it names."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.loras import LoraFacts
from imagekiln.steps.models.own_settings import OwnSettings
from imagekiln.steps.models.resolve import NamedRevision, ResolvedModel
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from imagekiln.workflows.cli.text import format_plan
from tests.hub import MODEL, REVISION, Hub, serving_model
from tests.jobs import image_rows, plan

LATER = "f" * 40
PROMPTS = {"prompt": ["a red circle", "a blue star"]}


def test_every_image_is_identified_by_model_and_adapters_and_the_run_by_loras_too() -> None:
    settings = ModelSettings(
        id="bundled:shapes",
        controlnet=ControlNetSettings(id="edges"),
        ip_adapter=IpAdapterSettings(id="faces", weight_name="faces.safetensors"),
    )
    model = ResolvedModel(
        Job(name="any", prompts="p", output="o", model=settings),
        ModelFacts("digest", "AnyPipeline", 64, 64, 8, OwnSettings(10, 3.0, "a test")),
        Path(),
        {"reference_images": "two", "control_image": "one"},
        {"style": LoraFacts("bb", ""), "detail": LoraFacts("aa", "")},
    )
    assert model.common_digest == "digest|control_image=one|reference_images=two"
    assert model.fixed_digest == f"{model.common_digest}|detail=aa|style=bb"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the bundled model, and an empty cache."""
    with serving_model(BUNDLED_FOLDER / "shapes", tmp_path, monkeypatch) as hub_server:
        yield hub_server


def _plan(folder: Path, revision: str | None = "main", **settings: object) -> PlanResult:
    model = {"id": MODEL} if revision is None else {"id": MODEL, "revision": revision}
    return plan(folder, PROMPTS, model=model, **settings)


@pytest.mark.usefixtures("server")
def test_a_plan_freezes_the_commit_of_a_branch(tmp_path: Path) -> None:
    planned = _plan(tmp_path / "main")
    content = json.loads((Path(planned.uri) / "plan.json").read_bytes())
    assert content["job"]["model"]["revision"] == REVISION
    assert content["model"]["digest"] == f"{MODEL}@{REVISION}"
    assert planned.plan.revisions == (NamedRevision("model", MODEL, "main", REVISION),)
    sentence = f"Revision main of {MODEL} is commit {REVISION}; frozen in the plan."
    assert sentence in format_plan(planned)
    assert _plan(tmp_path / "default", None).plan.revisions == planned.plan.revisions
    pinned = _plan(tmp_path / "pinned", REVISION)
    assert image_rows(planned)["image_id"] == image_rows(pinned)["image_id"]
    assert b'"revisions"' not in (Path(pinned.uri) / "plan.json").read_bytes()


@pytest.mark.parametrize("run_id", [None, "mine"])
def test_a_plan_is_reused_after_its_branch_moved(
    server: Hub, tmp_path: Path, run_id: str | None
) -> None:
    first = _plan(tmp_path, run_id=run_id)
    server.names.update(main=LATER, v2=LATER)
    again = _plan(tmp_path, run_id=run_id)
    assert (again.uri, again.plan, again.adopted) == (first.uri, first.plan, True)
    if run_id is None:
        assert f"has moved to {LATER} since" in format_plan(again)
    else:
        with pytest.raises(BadInput, match="holds a plan with another `model`"):
            _plan(tmp_path, "v2", run_id=run_id)


def test_without_the_hub_a_branch_is_the_commit_last_fetched(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plan(tmp_path)
    server.names["main"] = LATER
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert _plan(tmp_path, run_id="offline").plan.model.digest == f"{MODEL}@{REVISION}"


def test_adapters_and_loras_have_branches_too(server: Hub, tmp_path: Path) -> None:
    weights = "unet/diffusion_pytorch_model.safetensors"
    server.names["v1"] = REVISION
    lora = {"id": MODEL, "revision": "v1", "weight_name": weights}
    # The file is no LoRA: that it was read shows that the tag was resolved.
    with pytest.raises(BadInput, match="holds no LoRA"):
        plan(tmp_path, PROMPTS, model={"id": "bundled:shapes", "loras": {"style": lora}})
    assert server.requested_files == [weights]


def test_revision_of_a_model_that_has_none_is_refused(tmp_path: Path) -> None:
    model = {"id": "bundled:shapes", "dtype": "float32", "revision": "main"}
    with pytest.raises(BadInput, match=r"^model\.revision is main, and bundled:shapes is no rep"):
        plan(tmp_path, PROMPTS, model=model)
