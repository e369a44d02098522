"""A job's model is read once for a command."""

from pathlib import Path

from imagekiln.steps.job.adapters import ControlNetSettings, IpAdapterSettings
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.loras import LoraFacts
from imagekiln.steps.models.own_settings import OwnSettings
from imagekiln.steps.models.resolve import ResolvedModel

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


def test_every_image_is_identified_by_model_and_adapters_and_the_run_by_loras_too() -> None:
    model = _resolved(
        adapters={"reference_image": "two", "control_image": "one"},
        loras={"style": "bb", "detail": "aa"},
    )
    assert model.common_digest == "digest|control_image=one|reference_image=two"
    assert model.fixed_digest == f"{model.common_digest}|detail=aa|style=bb"
