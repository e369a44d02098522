"""What lies beside a run's images, read back: the lists that planning wrote, the sums, the card and the report."""

from collections.abc import Callable
from functools import cache

from imagekiln.steps import holdings, names, summary, tables
from imagekiln.steps.gate_settings import NEAR_DUPLICATE
from imagekiln.steps.in_order import map_ordered
from imagekiln.steps.plan import Plan
from imagekiln.steps.readback import CheckResult, run_check
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary

SummaryLoader = Callable[[], Summary]


def check_metadata_objects(store: Store, frozen: Plan) -> CheckResult:
    """Whether all of it is there, whole, and says the same."""
    sums = cache(lambda: summary.load_summary(store))
    checks: list[Callable[[], str | None]] = [
        lambda: _check_row_count(store, names.REJECTED_KEY, frozen.counts.rejected_rows),
        lambda: _check_row_count(store, names.DUPLICATES_KEY, frozen.counts.duplicate_images),
        lambda: _check_summary(store, frozen, sums),
        lambda: _check_near_duplicates(store, frozen, sums),
        lambda: _check_card(store),
        lambda: _check_image_index(store, sums),
        lambda: _check_report(store),
    ]
    return sum(map(run_check, checks), CheckResult())


def _check_row_count(store: Store, key: str, wanted: int) -> str | None:
    rows = tables.count_rows(store, key)
    return None if rows == wanted else f"{store.uri_of(key)}: has {rows} rows and not {wanted}, as planned"


def _check_summary(store: Store, frozen: Plan, sums: SummaryLoader) -> str | None:
    same = sums().images == frozen.counts.images
    return None if same else f"{store.uri_of(names.SUMMARY_KEY)}: is of another plan"


def _check_near_duplicates(store: Store, frozen: Plan, sums: SummaryLoader) -> str | None:
    """They are marked once the manifest is there, so a manifest that was just written anew may lack them."""
    if frozen.job.gates.near_duplicate is None:
        return None
    columns = map_ordered(
        lambda number: tables.read_column(store, names.manifest_key(number), "near_duplicate_of"), len(frozen.shards)
    )
    found = sum(len(column) - column.null_count for column in columns)
    marked = sums().marks.get(NEAR_DUPLICATE, 0)
    return None if found == marked else f"{store.uri}: its manifest marks {found} near-duplicates and not {marked}"


def _check_card(store: Store) -> str | None:
    whole = store.read(names.CARD_KEY).startswith(b"---\n")
    return None if whole else f"{store.uri_of(names.CARD_KEY)}: is no card of a dataset"


def _check_image_index(store: Store, sums: SummaryLoader) -> str | None:
    there, wanted = holdings.count_indexed_images(store), sums().ok
    return None if there == wanted else f"{store.uri_of(names.image_ids_key(0))}: names {there} images and not {wanted}"


def _check_report(store: Store) -> str | None:
    whole = store.read(names.REPORT_KEY).rstrip().endswith(b"</html>")
    return None if whole else f"{store.uri_of(names.REPORT_KEY)}: is no whole page"
