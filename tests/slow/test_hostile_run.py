"""Run folders that a stranger changed, in many ways: see `python -m tests.hostile --help`."""

import pytest

from tests import hostile_published
from tests.hostile import FORMATS, try_changes, try_missing_columns


@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_each_of_two_thousand_changes_leads_to_a_result_or_a_sentence(first: int) -> None:
    assert try_changes(range(first, first + 100)) == []


@pytest.mark.parametrize("image_format", FORMATS)
def test_each_column_that_a_table_lacks_leads_to_a_result_or_a_sentence(image_format: str) -> None:
    assert try_missing_columns(image_format) == []


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub 2.4.0
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_each_of_a_thousand_changes_of_exports_leads_to_a_result_or_a_sentence(first: int) -> None:
    assert hostile_published.try_changes(range(first, first + 100)) == []
