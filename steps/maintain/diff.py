"""Compares two runs: the same prompts under two models or settings, in numbers and on a page."""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.codecs import encode_thumbnail
from imagekiln.steps.imaging.measures import compare_pixels, resize_like
from imagekiln.steps.maintain.pairing import (
    ManifestRow,
    Pairing,
    pair_images,
    read_manifest_rows,
)
from imagekiln.steps.models.facts import default_guidance, default_steps
from imagekiln.steps.runs.image import describe_setting, find_varied_settings
from imagekiln.steps.runs.keys import DIFF_PAGE_KEY, PLAN_KEY, diff_image_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.readback import read_image_pixels
from imagekiln.steps.runs.run import Run, open_run
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.sanitize import sanitize_page_text
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.scratch import Database
from imagekiln.steps.storage.store import Store

MAX_SAMPLED_PAIRS = 200
MAX_PICTURED_PAIRS = 48
MAX_PROMPT_CHARS = 400
PICTURE_SIDE = 320  # pixels


@dataclass(frozen=True, slots=True)
class PairComparison:
    """One pair. `rms` is the distance of its pixels; sizes are width and height in pixels.

    `settings` are its seeds, and those that vary within a run or between the two.
    """

    prompt: str
    settings: str
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    rms: float


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Images that have one status in the first run and another in the second."""

    before: str
    after: str
    images: int


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting in which the runs differ."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Diff:
    """A comparison of two runs.

    `rms` is the mean distance of pixels over `sampled` pairs, in levels of 0 to 255.
    """

    first: str
    second: str
    page: str
    both: int
    only_first: int
    only_second: int
    pixels_equal: int
    changes: tuple[StatusChange, ...]
    settings: tuple[SettingDifference, ...]
    sampled: int
    rms: float | None


def diff(first: str, second: str, to: str) -> Diff:
    """Compare the runs at two URIs, and write a page with images into the folder `to`.

    Images are paired by their row's own id if both runs have ids, or else by prompt and
    negative prompt, and by their index; several of one prompt in their order. Of candidates, only
    the best counts. Raises Incomplete if a run was never aggregated, BadInput on damage,
    TryAgain.
    """
    first_run = open_run(first)
    second_run = open_run(second)
    target = open_store(to)
    if target.exists(PLAN_KEY):
        raise BadInput(f"{target.uri}: is a run. Choose another folder for the page.")

    pairing = _pair_runs(first_run, second_run)
    comparisons = _compare_sample(first_run, second_run, pairing, target)
    result = _build_diff(first_run, second_run, target, pairing, comparisons)
    page = render_diff(result, comparisons[:MAX_PICTURED_PAIRS])
    target.replace(DIFF_PAGE_KEY, page.encode())
    return result


def render_diff(result: Diff, comparisons: Sequence[PairComparison]) -> str:
    """The page as HTML. All user text is escaped."""
    environment = Environment(
        loader=PackageLoader("imagekiln.steps.maintain", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["visible_text"] = _visible_text
    image_keys = [
        [diff_image_key(index, "a"), diff_image_key(index, "b")]
        for index in range(len(comparisons))
    ]
    pairs = list(zip(comparisons, image_keys, strict=True))
    return environment.get_template("diff.html.j2").render(diff=result, pairs=pairs)


def _visible_text(text: str) -> str:
    if len(text) > MAX_PROMPT_CHARS:
        text = f"{text[:MAX_PROMPT_CHARS]}…"
    return sanitize_page_text(text)


def _pair_runs(first: Run, second: Run) -> Pairing:
    with (
        temporary_folder("imagekiln-diff-") as folder,
        closing(Database(Path(folder))) as database,
    ):
        return pair_images(database, first, second, MAX_SAMPLED_PAIRS)


def _compare_sample(
    first: Run, second: Run, pairing: Pairing, target: Store
) -> list[PairComparison]:
    first_numbers = [number for number, _ in pairing.sample]
    first_rows = read_manifest_rows(first, first_numbers)
    second_numbers = [number for _, number in pairing.sample]
    second_rows = read_manifest_rows(second, second_numbers)
    stores = (first.store, second.store)
    captions = _describe_pairs(first_rows, second_rows)

    def compare(index: int) -> PairComparison:
        rows = (first_rows[index], second_rows[index])
        return _compare_pair(stores, rows, captions[index], target, index)

    return list(map_ordered(compare, len(pairing.sample)))


def _describe_pairs(first: list[ManifestRow], second: list[ManifestRow]) -> list[str]:
    """For each pair, its seeds, and the settings that vary within a run or between the two."""
    varied = find_varied_settings(("", row) for row in (*first, *second)).get("", ())
    names = dict.fromkeys(("seed", *varied))
    captions = []
    for rows in zip(first, second, strict=True):
        values = (
            dict.fromkeys(describe_setting(name, row[name]) for row in rows) for name in names
        )
        captions.append(", ".join(" and ".join(both) for both in values))
    return captions


def _compare_pair(
    stores: tuple[Store, Store],
    rows: tuple[ManifestRow, ManifestRow],
    settings: str,
    target: Store,
    index: int,
) -> PairComparison:
    """Measure one pair, and write the images of the first pairs."""
    first = read_image_pixels(stores[0], rows[0])
    second = read_image_pixels(stores[1], rows[1])
    difference = compare_pixels(first, resize_like(second, first))
    if index < MAX_PICTURED_PAIRS:
        first_content = encode_thumbnail(first, PICTURE_SIDE)
        second_content = encode_thumbnail(second, PICTURE_SIDE)
        target.replace(diff_image_key(index, "a"), first_content)
        target.replace(diff_image_key(index, "b"), second_content)
    return PairComparison(
        prompt=str(rows[0]["prompt"]),
        settings=settings,
        sizes=(first.shape[1::-1], second.shape[1::-1]),
        rms=difference.rms,
    )


def _build_diff(
    first: Run,
    second: Run,
    target: Store,
    pairing: Pairing,
    comparisons: Sequence[PairComparison],
) -> Diff:
    rms = None
    if comparisons:
        rms = math.fsum(comparison.rms for comparison in comparisons) / len(comparisons)
    return Diff(
        first=first.store.uri,
        second=second.store.uri,
        page=target.uri_of(DIFF_PAGE_KEY),
        both=pairing.both,
        only_first=pairing.only_first,
        only_second=pairing.only_second,
        pixels_equal=pairing.pixels_equal,
        changes=tuple(
            StatusChange(*change, images)
            for change, images in sorted(pairing.statuses.items())
            if change[0] != change[1]
        ),
        settings=tuple(_setting_differences(first.plan, second.plan)),
        sampled=len(comparisons),
        rms=rms,
    )


def _setting_differences(first: Plan, second: Plan) -> Iterator[SettingDifference]:
    """The settings of the jobs that differ, and the model's files."""
    first_settings = _plan_settings(first)
    second_settings = _plan_settings(second)
    for name in first_settings | second_settings:
        values = (first_settings.get(name, ""), second_settings.get(name, ""))
        if values[0] != values[1]:
            yield SettingDifference(name, *values)


def _plan_settings(plan: Plan) -> dict[str, str]:
    job = plan.job.model_dump(mode="json", exclude={"output", "cluster"})
    resolved = {
        "defaults.steps": default_steps(plan.job, plan.model),
        "defaults.guidance": default_guidance(plan.job, plan.model),
        "model files": plan.model.digest,
        "fused LoRAs": plan.fused_loras,
    }
    return dict(_flatten({**job, **resolved}))


def _flatten(values: dict[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", str(value)
