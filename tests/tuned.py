"""Entries of tuning files, made by hand."""

from datetime import UTC, datetime
from pathlib import Path

from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.job.tuning_file import TuningEntry, add_tuning_entries
from imagekiln.steps.models.component_files import weights_digest
from tests.jobs import SHAPES

PLAIN: dict[str, object] = {
    "model": "bundled:shapes",
    "dtype": "float32",
    "gpu": "a GPU",
    "gpu_gib": 80.0,
    "width": 64,
    "height": 64,
    "guided": True,
    "batch": 4,
    "steps": 30,
    "seconds_per_image": 0.5,
    "measured": [{"batch": 4, "images_per_second": 2.0, "peak_gib": 3.5}],
    "when": datetime(2026, 11, 22, tzinfo=UTC),
    "versions": {"torch": "2"},
}


def entry(**changes: object) -> TuningEntry:
    """An entry for the bundled model, with changes."""
    digest = weights_digest(ModelSettings.model_validate(SHAPES))
    return TuningEntry.model_validate({"digest": digest, **PLAIN, **changes})


def tuned_file(folder: Path, *entries: TuningEntry) -> str:
    """A tuning file with these entries."""
    file = str(folder / "tuning.yaml")
    add_tuning_entries(file, *entries)
    return file
