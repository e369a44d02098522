"""A job whose images cannot fit on the disk of its output is refused before anything is drawn."""

import shutil
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.estimate import estimate
from imagekiln.steps.plan.space import SMALLEST_SHARE, find_free_bytes, require_space
from imagekiln.steps.plan.step import make_plan
from imagekiln.workflows.cli.plan_text import format_estimate
from tests.jobs import job

SIDE = 4096
HUGE = {
    "defaults": {"width": SIDE, "height": SIDE, "images_per_prompt": 10_000},
}


def test_job_that_cannot_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    huge = job(tmp_path, {"prompt": ["a"] * 3000, "seed": range(3000)}, **HUGE)
    with pytest.raises(BadInput, match=r"take about 193 TB, and .* has .* free\. Choose another"):
        make_plan(huge)
    assert not list(tmp_path.glob("out/*/plan.json"))
    estimated = estimate(huge)
    assert estimated.free_gigabytes is not None
    assert "about 193 TB; the output has only" in format_estimate(estimated)


def test_estimate_that_flat_images_may_undercut_is_no_obstacle(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    output = str(tmp_path / "not" / "yet")
    require_space(output, free)
    require_space("s3://bucket/images", 1e18)
    with pytest.raises(BadInput, match="another output"):
        require_space(output, 2 * free / SMALLEST_SHARE)


@pytest.mark.parametrize("output", ["a" * 300 + "/runs", "~nobody-of-this-name/runs"])
def test_output_that_no_disk_has_says_nothing_of_its_room(output: str) -> None:
    assert find_free_bytes(output) is None
