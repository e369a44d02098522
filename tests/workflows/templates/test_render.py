"""What `render` prints: compared whole with golden files."""

from functools import cache
from pathlib import Path

import pytest
import yaml

from imagekiln.workflows.templates.workflow import render_manifests
from tests.workflows.goldens import FOLDER, JOB, goldens

FILES = sorted(FOLDER.rglob("*.yaml"))


@cache
def _rendered() -> dict[Path, str]:
    return dict(goldens())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_rendered_yaml_is_the_golden_file(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == _rendered().get(path)


def test_every_golden_file_is_rendered() -> None:
    assert set(FILES) == set(_rendered()), "run make golden, and read what it wrote"


def test_schedule_and_event_are_both_rendered() -> None:
    text = render_manifests(JOB, ("30 1 * * *",), "Europe/Berlin", event=True)
    kinds = [manifest["kind"] for manifest in yaml.safe_load_all(text)]
    assert kinds == ["WorkflowTemplate", "CronWorkflow", "WorkflowEventBinding"]
