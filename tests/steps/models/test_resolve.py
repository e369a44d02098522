"""A job's model is read once for a command."""

import shutil
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.lora_files import LoraFacts
from imagekiln.steps.models.own_settings import OwnSettings
from imagekiln.steps.models.resolve import ResolvedModel, resolve_model
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from tests import jobs, safetensors
from tests.tuned import entry, tuned_file

FACTS = ModelFacts("digest", "AnyPipeline", 64, 64, 8, OwnSettings(10, 3.0, "a test"))


def _resolved(**changes: dict[str, str]) -> ResolvedModel:
    loras = {name: LoraFacts(sha256, "") for name, sha256 in changes.get("loras", {}).items()}
    model = ModelSettings(
        id="bundled:shapes",
        controlnet=ControlNetSettings(id="edges"),
        ip_adapter=IpAdapterSettings(id="faces", weight_name="faces.safetensors"),
    )
    job = Job(name="any", prompts="p", output="o", model=model)
    return ResolvedModel(job, FACTS, Path(), changes.get("adapters", {}), loras)


@pytest.fixture
def tuned_job(tmp_path: Path) -> Job:
    """A job that needs the digest of its model for all that planning does."""
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED_FOLDER / "shapes", folder)
    lora = safetensors.write(tmp_path / "style.safetensors")
    model = {"id": str(folder), "dtype": "float32", "loras": {"style": {"id": str(lora)}}}
    tuning = {"tuning": tuned_file(tmp_path, entry())}
    return jobs.job(tmp_path, {"prompt": ["a", "b"]}, model=model, batch=tuning)


@pytest.mark.parametrize("command", [make_plan, estimate])
def test_a_command_reads_weights_and_footers_once(
    tuned_job: Job, monkeypatch: pytest.MonkeyPatch, command: object
) -> None:
    opened: Counter[str] = Counter()
    footers: Counter[str] = Counter()
    open_path = Path.open
    read_metadata = pq.read_metadata

    def count_open(path: Path, *arguments: object, **options: object) -> object:
        opened[path.name] += 1
        return open_path(path, *arguments, **options)  # type: ignore[call-overload]

    def count_footer(path: Path) -> object:
        footers[path.name] += 1
        return read_metadata(path)

    monkeypatch.setattr(Path, "open", count_open)
    monkeypatch.setattr(pq, "read_metadata", count_footer)
    assert callable(command)
    command(tuned_job)
    weights = Counter(path.name for path in Path(tuned_job.model.id).rglob("*.safetensors"))
    assert weights
    assert {name: opened[name] for name in weights} == weights
    assert footers == {"prompts.parquet": 1}


def test_every_image_is_identified_by_model_and_adapters_and_the_run_by_loras_too() -> None:
    model = _resolved(
        adapters={"reference_image": "two", "control_image": "one"},
        loras={"style": "bb", "detail": "aa"},
    )
    assert model.common_digest == "digest|control_image=one|reference_image=two"
    assert model.fixed_digest == f"{model.common_digest}|detail=aa|style=bb"


def test_a_plain_model_is_its_own_digest() -> None:
    assert _resolved().fixed_digest == _resolved().common_digest == "digest"


def test_a_job_is_resolved_to_what_its_files_are(tuned_job: Job) -> None:
    model = resolve_model(tuned_job)
    assert model.configuration == Path(tuned_job.model.id)
    assert model.facts.pipeline == "StableDiffusionPipeline"
    assert {*model.loras} == {"style"}
    assert model.adapters == {}
