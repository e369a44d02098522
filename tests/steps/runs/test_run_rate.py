"""What a run took, as the next one reads it."""

import json

import pytest
from pydantic import ValidationError

from imagekiln.steps.runs.run_rate import RATE_TYPE_ADAPTER

RATE = {
    "run_id": "postcards-1",
    "digest": "d",
    "dtype": "bfloat16",
    "speed": {},
    "device": "NVIDIA L4",
    "work": 1e9,
    "shards": 4,
    "working_seconds": 100.0,
    "loading_seconds": 40.0,
}


def test_twice_the_work_in_as_many_shards_loads_as_often() -> None:
    rate = RATE_TYPE_ADAPTER.validate_json(json.dumps(RATE))
    assert rate.gpu_hours(2e9, 4) == pytest.approx(240 / 3600)


@pytest.mark.parametrize(
    "damaged",
    [{"work": 0}, {"work": 1e-310}, {"shards": 0}, {"shards": 10**400}, {"loading_seconds": -1}],
)
def test_figures_that_no_run_takes_are_damage(damaged: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RATE_TYPE_ADAPTER.validate_json(json.dumps(RATE | damaged))
