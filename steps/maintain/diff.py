"""Two runs side by side: the same prompts under two models or settings, in numbers and on a page."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.codecs import encode_thumbnail
from imagekiln.steps.imaging.measures import compare_pixels, resize_like
from imagekiln.steps.maintain.pairing import ComparedRun, Pairing, pair_images, read_rows
from imagekiln.steps.runs.keys import DIFF_PAGE_KEY, PLAN_KEY, diff_image_key
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.readback import read_image_pixels
from imagekiln.steps.runs.rounds import resolve_run
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.sanitize import sanitize_page_text
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

MAX_PROMPT_CHARS = 400  # of a text that has a megabyte


@dataclass(frozen=True, slots=True)
class PairComparison:
    """One pair. `rms` is the distance of its pixels; sizes are width and height of the images themselves."""

    prompt: str
    seeds: tuple[str, str]
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    rms: float


def render_diff(result: "Diff", shown: list[PairComparison]) -> str:
    """The page as HTML. Everything of the user's is escaped."""
    environment = Environment(
        loader=PackageLoader("imagekiln.steps.maintain", "."), autoescape=True, trim_blocks=True
    )
    environment.filters["visible"] = _visible_prompt
    template = environment.get_template("diff.html.j2")
    pictures = [[diff_image_key(place, which) for which in "ab"] for place in range(len(shown))]
    return template.render(diff=result, pairs=list(zip(shown, pictures, strict=True)))


def _visible_prompt(text: str) -> str:
    return sanitize_page_text(
        text if len(text) <= MAX_PROMPT_CHARS else f"{text[:MAX_PROMPT_CHARS]}…"
    )


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
    if target.exists(PLAN_KEY):
        raise BadInput(f"{target.uri}: is a run. Name another folder for the page.")
    with (
        tempfile.TemporaryDirectory(prefix="imagekiln-diff-") as spool,
        closing(Database(Path(spool))) as database,
    ):
        paired = pair_images(database, one, other, MAX_SAMPLED_PAIRS)
    firsts = read_rows(one, [pair[0] for pair in paired.sample])
    seconds = read_rows(other, [pair[1] for pair in paired.sample])
    sides = list(zip(firsts, seconds, strict=True))
    shown = list(
        map_ordered(
            lambda place: _compare_pair(one, other, target, place, sides[place]), len(sides)
        )
    )
    result = _build_diff(one, other, target, paired, shown)
    target.replace(DIFF_PAGE_KEY, render_diff(result, shown[:MAX_PICTURED_PAIRS]).encode())
    return result


def _open_side(uri: str) -> ComparedRun:
    run, _ = resolve_run(uri)
    store = open_store(run)
    return ComparedRun(store, load_plan(store))


def _compare_pair(
    one: ComparedRun,
    other: ComparedRun,
    target: Store,
    place: int,
    rows: tuple[ManifestRow, ManifestRow],
) -> PairComparison:
    """Measure one pair; of the first ones, write the pictures."""
    first, second = (
        read_image_pixels(one.store, rows[0]),
        read_image_pixels(other.store, rows[1]),
    )
    apart = compare_pixels(first, resize_like(second, first))
    if place < MAX_PICTURED_PAIRS:
        for which, picture in (("a", first), ("b", second)):
            target.replace(diff_image_key(place, which), encode_thumbnail(picture, PICTURE_SIDE))
    seeds = (str(rows[0]["seed"]), str(rows[1]["seed"]))
    return PairComparison(
        str(rows[0]["prompt"]), seeds, (first.shape[1::-1], second.shape[1::-1]), apart.rms
    )


def _build_diff(
    one: ComparedRun,
    other: ComparedRun,
    target: Store,
    paired: Pairing,
    shown: list[PairComparison],
) -> Diff:
    changes = (
        StatusChange(*both, images)
        for both, images in sorted(paired.statuses.items())
        if both[0] != both[1]
    )
    return Diff(
        one.store.uri,
        other.store.uri,
        target.uri_of(DIFF_PAGE_KEY),
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
        dict(_flatten(each.job.model_dump(mode="json", exclude={"output", "cluster"})))
        for each in (one, other)
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
