"""What lies beside a run's images, read back: the lists that planning wrote, the sums, the card and the report."""

from collections.abc import Callable
from functools import cache

from imagekiln.steps import holdings, names, summary, tables
from imagekiln.steps.gate_settings import NEAR_DUPLICATE
from imagekiln.steps.in_order import in_order
from imagekiln.steps.plan import Plan
from imagekiln.steps.readback import Checked, told
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary

Sums = Callable[[], Summary]


def check(store: Store, frozen: Plan) -> Checked:
    """Whether all of it is there, whole, and says the same."""
    sums = cache(lambda: summary.load(store))
    checks: list[Callable[[], str | None]] = [
        lambda: _list(store, names.REJECTED, frozen.counts.rejected_rows),
        lambda: _list(store, names.DUPLICATES, frozen.counts.duplicate_images),
        lambda: _summary(store, frozen, sums),
        lambda: _near_duplicates(store, frozen, sums),
        lambda: _card(store),
        lambda: _index(store, sums),
        lambda: _report(store),
    ]
    return sum(map(told, checks), Checked())


def _list(store: Store, key: str, wanted: int) -> str | None:
    rows = tables.count(store, key)
    return None if rows == wanted else f"{store.at(key)}: has {rows} rows and not {wanted}, as planned"


def _summary(store: Store, frozen: Plan, sums: Sums) -> str | None:
    same = sums().images == frozen.counts.images
    return None if same else f"{store.at(names.SUMMARY)}: is of another plan"


def _near_duplicates(store: Store, frozen: Plan, sums: Sums) -> str | None:
    """They are marked once the manifest is there, so a manifest that was just written anew may lack them."""
    if frozen.job.gates.near_duplicate is None:
        return None
    columns = in_order(
        lambda number: tables.column(store, names.manifest(number), "near_duplicate_of"), len(frozen.shards)
    )
    found = sum(len(column) - column.null_count for column in columns)
    marked = sums().marks.get(NEAR_DUPLICATE, 0)
    return None if found == marked else f"{store.uri}: its manifest marks {found} near-duplicates and not {marked}"


def _card(store: Store) -> str | None:
    whole = store.read(names.CARD).startswith(b"---\n")
    return None if whole else f"{store.at(names.CARD)}: is no card of a dataset"


def _index(store: Store, sums: Sums) -> str | None:
    there, wanted = holdings.count(store), sums().ok
    return None if there == wanted else f"{store.at(names.image_ids(0))}: names {there} images and not {wanted}"


def _report(store: Store) -> str | None:
    whole = store.read(names.REPORT).rstrip().endswith(b"</html>")
    return None if whole else f"{store.at(names.REPORT)}: is no whole page"
