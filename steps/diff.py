"""Two runs side by side: the same prompts under two models or settings, in numbers and on a page."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps import diff_page, fetch_image, names, pairing, plan, rounds
from imagekiln.steps.database import Database
from imagekiln.steps.diff_page import Shown
from imagekiln.steps.errors import BadInput
from imagekiln.steps.in_order import in_order
from imagekiln.steps.likeness import fitted, likeness
from imagekiln.steps.pairing import Paired, Side
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.thumbnail import jpeg

MOST_PAIRS = 200
MOST_SHOWN = 48
SIDE = 320  # pixels
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """So many images have come from one status to another."""

    before: str
    after: str
    images: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that the runs do not share."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Diff:
    """How two runs compare. `rms` is the mean distance of pixels over `sampled` pairs, in levels of 0 to 255.

    `indistinct` are images that are in no pair, since nothing but their seed tells them from another one of their run.
    """

    first: str
    second: str
    page: str
    both: int
    only_first: int
    only_second: int
    indistinct: int
    pixels_equal: int
    changes: tuple[Change, ...]
    settings: tuple[Setting, ...]
    sampled: int
    rms: float | None


def diff(first: str, second: str, to: str) -> Diff:
    """Compare the runs at two URIs, and write a page with its pictures into the folder `to`.

    Images are paired by their row's own id, where both runs have ids, or else by prompt and negative prompt, and by
    their index. Raises Incomplete where a run was never aggregated, BadInput on damage, TryAgain where storage fails.
    """
    one, other, target = _side(first), _side(second), open_store(to)
    if target.exists(names.PLAN):
        raise BadInput(f"{target.uri}: is a run. Name another folder for the page.")
    with tempfile.TemporaryDirectory(prefix="imagekiln-diff-") as spool, closing(Database(Path(spool))) as database:
        paired = pairing.pair(database, one, other, MOST_PAIRS)
    firsts = pairing.rows(one, [pair[0] for pair in paired.sample])
    seconds = pairing.rows(other, [pair[1] for pair in paired.sample])
    sides = list(zip(firsts, seconds, strict=True))
    shown = list(in_order(lambda place: _looked_at(one, other, target, place, sides[place]), len(sides)))
    result = _result(one, other, target, paired, shown)
    target.replace(names.DIFF, diff_page.page(result, shown[:MOST_SHOWN]).encode())
    return result


def _side(uri: str) -> Side:
    run, _ = rounds.home(uri)
    store = open_store(run)
    return Side(store, plan.load(store))


def _looked_at(one: Side, other: Side, target: Store, place: int, rows: tuple[Row, Row]) -> Shown:
    """Measure one pair; of the first ones, write the pictures."""
    first, second = fetch_image.pixels(one.store, rows[0]), fetch_image.pixels(other.store, rows[1])
    apart = likeness(first, fitted(second, first))
    if place < MOST_SHOWN:
        for which, picture in (("a", first), ("b", second)):
            target.replace(names.diff_picture(place, which), jpeg(picture, SIDE))
    seeds = (str(rows[0]["seed"]), str(rows[1]["seed"]))
    return Shown(str(rows[0]["prompt"]), seeds, (first.shape[1::-1], second.shape[1::-1]), apart.rms)


def _result(one: Side, other: Side, target: Store, paired: Paired, shown: list[Shown]) -> Diff:
    changes = (Change(*both, images) for both, images in sorted(paired.statuses.items()) if both[0] != both[1])
    return Diff(
        one.store.uri,
        other.store.uri,
        target.at(names.DIFF),
        paired.both,
        paired.only_first,
        paired.only_second,
        paired.alike,
        paired.pixels_equal,
        tuple(changes),
        tuple(_settings(one.plan, other.plan)),
        len(shown),
        math.fsum(each.rms for each in shown) / len(shown) if shown else None,
    )


def _settings(one: Plan, other: Plan) -> Iterator[Setting]:
    """What the plans differ in, and both of them say."""
    first, second = (
        dict(_flat(each.job.model_dump(mode="json", exclude={"output", "cluster"}))) for each in (one, other)
    )
    first["model files"], second["model files"] = one.model.digest, other.model.digest
    for name in first | second:
        if first.get(name) != second.get(name):
            yield Setting(name, first.get(name, ""), second.get(name, ""))


def _flat(values: dict[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        elif value is not None:
            yield above + name, str(value)
