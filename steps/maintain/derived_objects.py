"""What a run has beside parts and manifest: whether each object is whole, and agrees with them."""

from collections.abc import Callable
from functools import partial

from imagekiln.steps.maintain.recount import Recount
from imagekiln.steps.runs.integrity import CheckResult, run_check
from imagekiln.steps.runs.keys import (
    CARD_KEY,
    DUPLICATES_KEY,
    EMPTY_DATASET_KEY,
    REJECTED_KEY,
    REPORT_KEY,
)
from imagekiln.steps.runs.rounds import Run
from imagekiln.steps.runs.tables import count_rows, read_bounds
from imagekiln.steps.storage.store import Store


def check_derived_objects(run: Run, recount: Recount) -> CheckResult:
    """The errors of lists of rows, summary, card, index of images and report. Raises TryAgain."""
    store = run.store
    counts = run.plan.counts
    rows = run.plan.input.rows
    checks: list[Callable[[], str | None]] = [
        partial(_check_row_list, store, REJECTED_KEY, counts.rejected_rows, rows),
        partial(_check_row_list, store, DUPLICATES_KEY, counts.duplicate_images, rows),
        partial(recount.check_summary, store),
        partial(_check_card, store),
        partial(_check_empty_dataset, store, recount),
        partial(recount.check_index, store),
        partial(_check_report, store),
    ]
    return sum(map(run_check, checks), CheckResult())


def _check_row_list(store: Store, key: str, expected: int, input_rows: int) -> str | None:
    """Whether a list of input rows has so many, of rows that the input has."""
    count = count_rows(store, key)
    if count != expected:
        return f"{store.uri_of(key)}: has {count} rows and not {expected}, as planned"
    bounds = read_bounds(store, key, "input_row")
    if bounds is not None and not 0 <= bounds[0] <= bounds[1] < input_rows:
        return f"{store.uri_of(key)}: names rows that the input does not have"
    return None


def _check_card(store: Store) -> str | None:
    if store.read(CARD_KEY).startswith(b"---\n"):
        return None
    return f"{store.uri_of(CARD_KEY)}: is not a dataset card"


def _check_empty_dataset(store: Store, recount: Recount) -> str | None:
    """Only a run without images has it."""
    if not recount.is_empty:
        return None
    rows = count_rows(store, EMPTY_DATASET_KEY)
    return f"{store.uri_of(EMPTY_DATASET_KEY)}: has {rows} rows and not 0" if rows else None


def _check_report(store: Store) -> str | None:
    if store.read(REPORT_KEY).rstrip().endswith(b"</html>"):
        return None
    return f"{store.uri_of(REPORT_KEY)}: is not a complete page"
