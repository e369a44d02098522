"""Tiny models with random weights, under the names and with the configurations of well-known ones.

The configurations are those that the models' repositories have, as far as they differ from the tiny
ones. Run as a script (`python -m tests.own_settings`), it plans each with nothing set.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests import families, jobs, models, plain

Changes = Mapping[str, Mapping[str, object]]
TURBO_SCHEDULER = {
    "_class_name": "EulerAncestralDiscreteScheduler",
    "prediction_type": "epsilon",
    "timestep_spacing": "trailing",
}


def _schnell() -> models.Untyped:
    """A FLUX whose transformer takes no guidance."""
    pipe = models.BUILD["flux"]()
    config = {**pipe.transformer.config, "guidance_embeds": False}
    pipe.transformer = type(pipe.transformer).from_config(config)
    return pipe


@dataclass(frozen=True)
class Known:
    """A well-known model: what a tiny one of its family lacks, and its steps and guidance."""

    folder: Callable[[], Path]
    steps: int
    guidance: float | None
    source: str
    files: Changes = field(default_factory=dict)


def _distilled() -> Changes:
    return {"model_index.json": {"is_distilled": True}}


KNOWN = {
    "Z-Image-Turbo": Known(lambda: families.folder("z-image"), 8, 0.0, "model card"),
    "sdxl-turbo": Known(
        lambda: models.folder("sdxl"),
        1,
        0.0,
        "model card",
        {
            "model_index.json": {"scheduler": ["diffusers", "EulerAncestralDiscreteScheduler"]},
            "scheduler/scheduler_config.json": TURBO_SCHEDULER,
        },
    ),
    "FLUX.1-schnell": Known(lambda: models.saved("schnell", _schnell), 4, None, "model card"),
    "FLUX.1-dev": Known(lambda: models.folder("flux"), 28, 3.5, "defaults of FluxPipeline"),
    "FLUX.2-klein-4B": Known(
        lambda: families.folder("klein"), 4, None, "is_distilled", _distilled()
    ),
    "FLUX.2-klein-base-4B": Known(
        lambda: families.folder("klein"), 50, 4.0, "defaults of Flux2KleinPipeline"
    ),
    "Qwen-Image": Known(
        lambda: families.folder("qwen-image"), 50, 4.0, "defaults of QwenImagePipeline"
    ),
    "Krea-2-Turbo": Known(lambda: plain.folder("krea2"), 8, 0.0, "model card", _distilled()),
    "Krea-2-Raw": Known(lambda: plain.folder("krea2"), 28, 4.5, "defaults of Krea2Pipeline"),
    "stable-diffusion-v1-5": Known(
        lambda: models.folder("sd"), 50, 7.5, "defaults of StableDiffusionPipeline"
    ),
}


def write(name: str, folder: Path, known: Known | None = None) -> Path:
    """A folder of this name with the tiny model, and the configurations of the well-known one."""
    known = known or KNOWN[name]
    target = folder / name
    shutil.copytree(known.folder(), target)
    for file, changes in known.files.items():
        change(target / file, **changes)
    return target


def change(file: Path, **changes: object) -> None:
    """Change values of a configuration; None removes one."""
    values = {**json.loads(file.read_text()), **changes}
    present = {name: value for name, value in values.items() if value is not None}
    file.write_text(json.dumps(present))


def main() -> None:
    """Print what is drawn of each model with nothing set, and where that is from."""
    from imagekiln.steps.models.facts import describe_defaults

    for name in KNOWN:
        with tempfile.TemporaryDirectory() as folder:
            target = write(name, Path(folder))
            model = {"id": str(target), "dtype": "float32"}
            plan = jobs.plan(Path(folder), {"prompt": ["a red circle"]}, model=model).plan
            print(f"{name:24} {describe_defaults(plan.job, plan.model)}")  # noqa: T201


if __name__ == "__main__":
    main()
