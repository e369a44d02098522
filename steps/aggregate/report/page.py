"""The report page, in HTML without scripts or data URIs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from imagekiln.steps.aggregate.image_table import Row
from imagekiln.steps.aggregate.report.pictures import Pictures
from imagekiln.steps.aggregate.report.tables import distribution_tables
from imagekiln.steps.aggregate.report.time_and_cost import (
    cost_table,
    describe_cost,
    find_bottleneck,
    slow_shards_table,
    stage_tables,
)
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.aggregate.verdict import GateResult, RunVerdict, gate_results, judge_run
from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.codecs import encode_thumbnail
from imagekiln.steps.job.gates import (
    BLANK,
    LOW_CONTRAST,
    MAX_HASH_DISTANCE,
    MAX_SATURATION,
    NEAR_DUPLICATE,
    OVER_SATURATED,
    SAFETY,
)
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import describe_encoding, file_suffix
from imagekiln.steps.runs.image import describe_setting, find_varied_settings
from imagekiln.steps.runs.keys import REPORT_KEY, report_image_key, thumbnail_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.readback import decode_stored_image, read_image_bytes
from imagekiln.steps.runtime.concurrency import map_ordered
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_count,
    format_duration,
    format_money,
    format_number,
    format_percent,
    format_time,
    pluralize,
)
from imagekiln.steps.runtime.sanitize import sanitize_lines, sanitize_page_text
from imagekiln.steps.storage.store import Store

THUMBNAIL_SIDE = 256  # pixels
MAX_FULL_IMAGE_BYTES = 128_000_000  # total size of full images beside the report
UNFOLDED_FAILURES = 5  # others are collapsed
UNFOLDED_SAMPLES = 24  # others are collapsed
MAX_FAILURES = 20
MAX_PARTS = 20
TEMPLATE_FILTERS = (
    describe_setting,
    format_bytes,
    format_duration,
    format_count,
    format_money,
    format_number,
    format_percent,
    format_time,
    pluralize,
    sanitize_lines,
    sanitize_page_text,
)


@dataclass(frozen=True, slots=True)
class GateSection:
    """Section of a gate, with its criterion, its result, and marked images with reasons."""

    result: GateResult
    criterion: str
    examples: tuple[tuple[Row, str], ...]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Data of the report on the run at `uri`. Without `verdict`, the whole run is judged."""

    uri: str
    plan: Plan
    summary: Summary
    pictures: Pictures
    verdict: RunVerdict | None = None

    @property
    def full_images(self) -> dict[str, str]:
        """Keys of the images stored in full size beside the report, by image id."""
        suffix = file_suffix(self.plan.job.encoding)
        keys: dict[str, str] = {}
        free_bytes = MAX_FULL_IMAGE_BYTES
        for row in self.pictures.distinct:
            if row["byte_size"] <= free_bytes:
                keys[row["image_id"]] = report_image_key(row["image_id"], suffix)
                free_bytes -= row["byte_size"]
        return keys


def write_report(
    store: Store,
    data: ReportData,
    target: Store | None = None,
    is_current: Callable[[], bool] = lambda: True,
) -> None:
    """Write the report's images and then its page, unless it is no longer current.

    `target` is the store of the page, by default the run.
    """
    target = target or store
    _write_images(store, target, data, is_current)
    if is_current():
        target.replace(REPORT_KEY, render_report(data).encode())


def render_report(data: ReportData) -> str:
    """Render the report as HTML. All user strings are escaped."""
    return _page_template().render(_template_context(data))


@cache  # compiling the template takes longer than rendering
def _page_template() -> Template:
    environment = Environment(
        loader=PackageLoader("imagekiln.steps.aggregate.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {function.__name__: function for function in TEMPLATE_FILTERS}
    return environment.get_template("report.html.j2")


def _write_images(
    store: Store, target: Store, data: ReportData, is_current: Callable[[], bool]
) -> None:
    """Write thumbnails of images in `store`, and the full images that they link to."""
    full_images = data.full_images
    rows = data.pictures.distinct

    def write(number: int) -> None:
        row = rows[number]
        try:
            content = read_image_bytes(store, row)
            pixels = decode_stored_image(store, row, content)
        except BadInput:
            if is_current():
                raise
            return
        thumbnail = encode_thumbnail(pixels, THUMBNAIL_SIDE)
        if not is_current():  # the image may have been taken down
            return
        target.replace(thumbnail_key(number), thumbnail)
        if row["image_id"] in full_images:
            target.replace(full_images[row["image_id"]], content)

    for _ in map_ordered(write, len(rows)):
        pass


def _gate_sections(data: ReportData) -> list[GateSection]:
    job = data.plan.job
    sections = []
    for result in gate_results(job, data.summary):
        rows = data.pictures.by_gate.get(result.gate, ())
        examples = tuple((row, _mark_reason(result.gate, row)) for row in rows)
        criterion = _criterion(job, result.gate)
        section = GateSection(result, criterion, examples)
        sections.append(section)
    return sections


def _criterion(job: Job, gate: str) -> str:
    criteria = {
        BLANK: "not finite, or a single flat color",
        SAFETY: "flagged by the model's safety checker",
        LOW_CONTRAST: f"contrast under {format_number(job.gates.low_contrast.below)}",
        OVER_SATURATED: f"more than {format_percent(MAX_SATURATION)} vivid pixels",
        NEAR_DUPLICATE: f"at most {MAX_HASH_DISTANCE} bits from an earlier image",
    }
    criteria |= {check.name: check.entry for check in job.gates.checks}
    criteria |= {name: score.criterion for name, score in job.scores.items()}
    return criteria[gate]


def _mark_reason(gate: str, row: Row) -> str:
    if gate == LOW_CONTRAST:
        return f"contrast {format_number(row['contrast'])}"
    if gate == OVER_SATURATED:
        return f"{format_percent(row['saturation'])} vivid pixels"
    if gate == NEAR_DUPLICATE:
        return f"looks like {row['near_duplicate_of']}"
    return (row["marks_reason"] or "").removeprefix(f"{gate}: ")


def _template_context(data: ReportData) -> dict[str, object]:
    job = data.plan.job
    summary = data.summary
    pictures = data.pictures
    rows = pictures.distinct
    return {
        "uri": data.uri,
        "plan": data.plan,
        "summary": summary,
        "encoding": describe_encoding(job.encoding),
        "whole": data.verdict is None,
        "verdict": data.verdict or judge_run(summary, job, data.uri),
        "missing_parts": summary.missing_parts[:MAX_PARTS],
        "failures": summary.failures[:MAX_FAILURES],
        "unfolded_failures": UNFOLDED_FAILURES,
        "gates": _gate_sections(data),
        "slow_shards": slow_shards_table(summary.throughput),
        "stages": stage_tables(summary.seconds, summary.busy_share),
        "cost": cost_table(summary.spending),
        "cost_sentences": describe_cost(summary),
        "bottleneck": find_bottleneck(summary.seconds, summary.busy_share),
        "distributions": distribution_tables(summary),
        "grid": pictures.grid,
        "thumbnails": {row["image_id"]: number for number, row in enumerate(rows)},
        "samples": pictures.sample,
        "unfolded_step": ceil(len(pictures.sample) / UNFOLDED_SAMPLES),
        "varied": find_varied_settings((row["prompt"], row) for row in rows),
        "full_images": data.full_images,
        "max_full_bytes": MAX_FULL_IMAGE_BYTES,
    }
