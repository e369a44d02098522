"""Two runs side by side: the same prompts under two models or settings, in numbers and on a page."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps import diff_page, fetch_image, names, pairing, plan, rounds
from imagekiln.steps.database import Database
from imagekiln.steps.diff_page import PairComparison
from imagekiln.steps.errors import BadInput
from imagekiln.steps.in_order import map_ordered
from imagekiln.steps.likeness import compare_pixels, resize_like
from imagekiln.steps.pairing import ComparedRun, Pairing
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store, open_store
from imagekiln.steps.thumbnail import encode_thumbnail

MAX_SAMPLED_PAIRS = 200
MAX_PICTURED_PAIRS = 48
PICTURE_SIDE = 320  # pixels
ManifestRow = dict[str, object]


@dataclass(frozen=True, slots=True)
class StatusChange:
    """So many images have come from one status to another."""

    before: str
    after: str
    images: int


@dataclass(frozen=True, slots=True)
class SettingDifference:
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
    changes: tuple[StatusChange, ...]
    settings: tuple[SettingDifference, ...]
    sampled: int
    rms: float | None


def diff(first: str, second: str, to: str) -> Diff:
    """Compare the runs at two URIs, and write a page with its pictures into the folder `to`.

    Images are paired by their row's own id, where both runs have ids, or else by prompt and negative prompt, and by
    their index. Raises Incomplete where a run was never aggregated, BadInput on damage, TryAgain where storage fails.
    """
    one, other, target = _open_side(first), _open_side(second), open_store(to)
    if target.exists(names.PLAN_KEY):
        raise BadInput(f"{target.uri}: is a run. Name another folder for the page.")
    with tempfile.TemporaryDirectory(prefix="imagekiln-diff-") as spool, closing(Database(Path(spool))) as database:
        paired = pairing.pair_images(database, one, other, MAX_SAMPLED_PAIRS)
    firsts = pairing.read_rows(one, [pair[0] for pair in paired.sample])
    seconds = pairing.read_rows(other, [pair[1] for pair in paired.sample])
    sides = list(zip(firsts, seconds, strict=True))
    shown = list(map_ordered(lambda place: _compare_pair(one, other, target, place, sides[place]), len(sides)))
    result = _build_diff(one, other, target, paired, shown)
    target.replace(names.DIFF_PAGE_KEY, diff_page.render_diff(result, shown[:MAX_PICTURED_PAIRS]).encode())
    return result


def _open_side(uri: str) -> ComparedRun:
    run, _ = rounds.resolve_run(uri)
    store = open_store(run)
    return ComparedRun(store, plan.load_plan(store))


def _compare_pair(
    one: ComparedRun, other: ComparedRun, target: Store, place: int, rows: tuple[ManifestRow, ManifestRow]
) -> PairComparison:
    """Measure one pair; of the first ones, write the pictures."""
    first, second = (
        fetch_image.read_image_pixels(one.store, rows[0]),
        fetch_image.read_image_pixels(other.store, rows[1]),
    )
    apart = compare_pixels(first, resize_like(second, first))
    if place < MAX_PICTURED_PAIRS:
        for which, picture in (("a", first), ("b", second)):
            target.replace(names.diff_image_key(place, which), encode_thumbnail(picture, PICTURE_SIDE))
    seeds = (str(rows[0]["seed"]), str(rows[1]["seed"]))
    return PairComparison(str(rows[0]["prompt"]), seeds, (first.shape[1::-1], second.shape[1::-1]), apart.rms)


def _build_diff(
    one: ComparedRun, other: ComparedRun, target: Store, paired: Pairing, shown: list[PairComparison]
) -> Diff:
    changes = (StatusChange(*both, images) for both, images in sorted(paired.statuses.items()) if both[0] != both[1])
    return Diff(
        one.store.uri,
        other.store.uri,
        target.uri_of(names.DIFF_PAGE_KEY),
        paired.both,
        paired.only_first,
        paired.only_second,
        paired.indistinct,
        paired.pixels_equal,
        tuple(changes),
        tuple(_setting_differences(one.plan, other.plan)),
        len(shown),
        math.fsum(each.rms for each in shown) / len(shown) if shown else None,
    )


def _setting_differences(one: Plan, other: Plan) -> Iterator[SettingDifference]:
    """What the plans differ in, and both of them say."""
    first, second = (
        dict(_flatten(each.job.model_dump(mode="json", exclude={"output", "cluster"}))) for each in (one, other)
    )
    first["model files"], second["model files"] = one.model.digest, other.model.digest
    for name in first | second:
        if first.get(name) != second.get(name):
            yield SettingDifference(name, first.get(name, ""), second.get(name, ""))


def _flatten(values: dict[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{above}{name}.")
        elif value is not None:
            yield above + name, str(value)
