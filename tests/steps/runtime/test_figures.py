"""Figures as people read them."""

import pytest

from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_duration,
    format_estimate_error,
    format_number,
    format_percent,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (3.14159, "3.14"),
        (99.99, "100"),
    ],
)
def test_a_number_has_three_significant_digits(number: float, text: str) -> None:
    assert format_number(number) == text


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
    ("share", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.5, "50 %"),
    ],
)
def test_a_share_that_is_not_all_or_nothing_never_reads_as_that(share: float, text: str) -> None:
    assert format_percent(share) == text


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
