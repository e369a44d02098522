"""Figures as people read them."""

import pytest

from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_duration,
    format_estimate_error,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1500, "1.5 kB"),
        (5e18, "5,000 PB"),
    ],
)
def test_a_size_has_its_unit(number: float, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (41.53, "41.5 s"),
        (12000, "3 h 20 min"),
        (0.0001, "under 0.001 s"),
    ],
)
def test_a_time_has_two_units_at_most(number: float, text: str) -> None:
    assert format_duration(number) == text


def test_a_run_far_over_its_estimate_took_so_many_times_as_long() -> None:
    assert format_estimate_error(33.003) == "34 times the estimate"
    assert format_estimate_error(2.0) == "200 % more than estimated"
    assert format_estimate_error(-0.05) == "5 % less than estimated"
