import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.models.resolve import NamedRevision
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from imagekiln.workflows.cli.text import format_plan
from tests.hub import MODEL, REVISION, Hub
from tests.hub import hub as loopback_hub
from tests.jobs import image_rows, plan

LATER = "f" * 40
URLS = "{repo_id}/resolve/{revision}/{filename}"
PROMPTS = {"prompt": ["a red circle", "a blue star"]}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the bundled model, and an empty cache."""
    from huggingface_hub import constants

    with loopback_hub(BUNDLED_FOLDER / "shapes") as hub_server:
        template = f"{hub_server.endpoint}/{URLS}"
        monkeypatch.setattr(constants, "ENDPOINT", hub_server.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub_server


def _plan(folder: Path, revision: str | None = "main", **settings: object) -> PlanResult:
    model = {"id": MODEL} if revision is None else {"id": MODEL, "revision": revision}
    return plan(folder, PROMPTS, model=model, **settings)


@pytest.mark.parametrize("revision", ["main", None])
@pytest.mark.usefixtures("server")
def test_a_plan_freezes_the_commit_of_a_branch(tmp_path: Path, revision: str | None) -> None:
    planned = _plan(tmp_path, revision)
    content = json.loads((Path(planned.uri) / "plan.json").read_bytes())
    assert content["job"]["model"]["revision"] == REVISION
    assert content["model"]["digest"] == f"{MODEL}@{REVISION}"
    assert planned.plan.revisions == (NamedRevision("model", MODEL, "main", REVISION),)
    sentence = f"Revision main of {MODEL} is commit {REVISION}; frozen in the plan."
    assert sentence in format_plan(planned)


@pytest.mark.usefixtures("server")
def test_a_commit_gives_the_images_of_its_branch_and_a_plan_without_names(tmp_path: Path) -> None:
    named = _plan(tmp_path / "named")
    pinned = _plan(tmp_path / "pinned", REVISION)
    assert image_rows(named)["image_id"] == image_rows(pinned)["image_id"]
    assert "revisions" not in json.loads((Path(pinned.uri) / "plan.json").read_bytes())


@pytest.mark.parametrize("run_id", [None, "mine"])
def test_a_plan_is_reused_after_its_branch_moved(
    server: Hub, tmp_path: Path, run_id: str | None
) -> None:
    first = _plan(tmp_path, run_id=run_id)
    server.names["main"] = LATER
    again = _plan(tmp_path, run_id=run_id)
    assert (again.uri, again.plan, again.adopted) == (first.uri, first.plan, True)


def test_a_branch_that_moved_is_named_with_both_commits(server: Hub, tmp_path: Path) -> None:
    _plan(tmp_path)
    server.names["main"] = LATER
    text = format_plan(_plan(tmp_path))
    assert f"is commit {REVISION}; frozen in the plan." in text
    assert f"has moved to {LATER} since" in text


def test_a_run_planned_by_another_name_is_not_reused(server: Hub, tmp_path: Path) -> None:
    server.names["v2"] = LATER
    _plan(tmp_path, run_id="mine")
    with pytest.raises(BadInput, match="holds a plan with another `model`"):
        _plan(tmp_path, "v2", run_id="mine")


def test_without_the_hub_a_branch_is_the_commit_last_fetched(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    _plan(tmp_path)
    server.names["main"] = LATER
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert _plan(tmp_path, run_id="offline").plan.model.digest == f"{MODEL}@{REVISION}"


def test_adapters_and_loras_have_branches_too(server: Hub, tmp_path: Path) -> None:
    weights = "unet/diffusion_pytorch_model.safetensors"
    lora = {"id": MODEL, "revision": "v1", "weight_name": weights}
    server.names["v1"] = REVISION
    model = {"id": "bundled:shapes", "loras": {"style": lora}}
    # The file is no LoRA: that it was read shows that the tag was resolved.
    with pytest.raises(BadInput, match="holds no LoRA"):
        plan(tmp_path, PROMPTS, model=model)
    assert server.requested_files == [weights]


def test_revision_of_a_model_that_has_none_is_refused(tmp_path: Path) -> None:
    model = {"id": "bundled:shapes", "dtype": "float32", "revision": "main"}
    with pytest.raises(BadInput, match=r"^model\.revision is main, and bundled:shapes is no rep"):
        plan(tmp_path, {"prompt": ["a"]}, model=model)
