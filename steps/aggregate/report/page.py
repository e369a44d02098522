"""The report page: HTML without scripts or data URIs, which opens anywhere."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import chain

from jinja2 import Environment, PackageLoader, StrictUndefined

from imagekiln.steps.aggregate.report.charts import (
    Chart,
    distribution_charts,
    share_tables,
    throughput_chart,
)
from imagekiln.steps.aggregate.report.contact_sheet import ContactSheet, Sample, render_thumbnail
from imagekiln.steps.aggregate.report.gates import gate_sections, top_gates
from imagekiln.steps.aggregate.report.previous_run import compare_summaries, load_previous_summary
from imagekiln.steps.aggregate.report.time_use import (
    describe_starts,
    find_bottleneck,
    summarize_time_use,
)
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.aggregate.verdict import judge_run
from imagekiln.steps.job.output import describe_encoding
from imagekiln.steps.runs.keys import REPORT_KEY, plot_key, thumbnail_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runtime.figures import (
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_percent,
    pluralize,
)
from imagekiln.steps.runtime.sanitize import sanitize_lines, sanitize_page_text
from imagekiln.steps.storage.store import Store

log = logging.getLogger(__name__)

NO_PLOTS = (
    "matplotlib: not installed, so the report has no plots, only their figures. For plots, type: "
    "pip install 'imagekiln[report]', and aggregate the run again."
)
THUMBNAIL_WRITERS = 8
UNFOLDED_FAILURES = 5  # the others are folded away
MAX_FAILURES = 20
MAX_PARTS = 20
FORMAT_PHRASES = {
    "parquet": "in Parquet",
    "webdataset": "in WebDataset tars",
    "files": "as files with sidecars",
}
TEMPLATE_FILTERS: dict[str, Callable[..., str]] = {
    "format_bytes": format_bytes,
    "format_duration": format_duration,
    "format_count": format_count,
    "format_number": format_number,
    "format_percent": format_percent,
    "pluralize": pluralize,
    "sanitize_lines": sanitize_lines,
    "sanitize_page_text": sanitize_page_text,
}


@dataclass(frozen=True, slots=True)
class ReportData:
    """What the page shows of the run at `uri`. `previous` is the run that it is compared with.

    `with_plots` is false where they cannot be drawn.
    """

    uri: str
    plan: Plan
    summary: Summary
    previous: Summary | None
    sheet_samples: list[Sample]
    samples_by_gate: dict[str, Sequence[Sample]] = field(default_factory=dict)
    with_plots: bool = True

    @property
    def samples(self) -> list[Sample]:
        """All samples, in the order in which thumbnails are numbered."""
        return [*self.sheet_samples, *chain.from_iterable(self.samples_by_gate.values())]


def write_report(
    store: Store,
    plan: Plan,
    summary: Summary,
    sheet: ContactSheet,
    find_library: Callable[[str], ModuleSpec | None] = find_spec,
) -> None:
    """Write the page and its images into the run, the page last.

    Without matplotlib, which an installation without extras lacks, the page has no plots.
    """
    charts = plotted_charts(summary)
    can_plot = find_library("matplotlib") is not None
    if charts and not can_plot:
        log.warning(NO_PLOTS)

    data = ReportData(
        uri=store.uri,
        plan=plan,
        summary=summary,
        previous=load_previous_summary(store, plan),
        sheet_samples=sheet.samples,
        samples_by_gate=top_gates(sheet.samples_by_gate, summary.marks),
        with_plots=can_plot,
    )
    _write_thumbnails(store, data.samples)
    if can_plot:
        write_plots(store, charts)
    store.replace(REPORT_KEY, render_report(data).encode())


def plotted_charts(summary: Summary) -> list[Chart]:
    """The charts that have a plot."""
    time_use = summarize_time_use(summary.seconds, summary.usage)
    charts = [
        throughput_chart(summary.throughput),
        time_use.chart if time_use else None,
        *distribution_charts(summary),
    ]
    return [chart for chart in charts if chart is not None and chart.plot is not None]


def render_report(data: ReportData) -> str:
    """The report as HTML. All user text is escaped."""
    environment = Environment(
        loader=PackageLoader("imagekiln.steps.aggregate.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= TEMPLATE_FILTERS
    return environment.get_template("report.html.j2").render(_template_context(data))


def write_plots(store: Store, charts: list[Chart]) -> None:
    """Draw each chart's plot for a light background and for a dark one."""
    if not charts:
        return
    # Only where something is drawn: matplotlib takes a second to import.
    from imagekiln.steps.aggregate.report import plots

    for chart in charts:
        if chart.plot is not None:
            light = plots.draw_plot(chart.plot, plots.LIGHT_SCHEME)
            dark = plots.draw_plot(chart.plot, plots.DARK_SCHEME)
            store.replace(plot_key(chart.name), light)
            store.replace(plot_key(chart.name, dark=True), dark)


def _write_thumbnails(store: Store, samples: Sequence[Sample]) -> None:
    def write(number: int) -> None:
        store.replace(thumbnail_key(number), render_thumbnail(store, samples[number]))

    with ThreadPoolExecutor(THUMBNAIL_WRITERS) as pool:
        list(pool.map(write, range(len(samples))))


def _template_context(data: ReportData) -> dict[str, object]:
    job = data.plan.job
    summary = data.summary
    return {
        "plan": data.plan,
        "summary": summary,
        "with_plots": data.with_plots,
        "encoding": describe_encoding(job.encoding),
        "format_phrase": FORMAT_PHRASES[job.format],
        "verdict": judge_run(summary, job, data.uri),
        "missing_parts": summary.missing_parts[:MAX_PARTS],
        "failures": summary.failures[:MAX_FAILURES],
        "unfolded_failures": UNFOLDED_FAILURES,
        "gates": gate_sections(
            job.gates, summary, data.samples_by_gate, first_number=len(data.sheet_samples)
        ),
        "previous": data.previous,
        "changes": compare_summaries(summary, data.previous) if data.previous else [],
        "throughput": throughput_chart(summary.throughput),
        "time_use": summarize_time_use(summary.seconds, summary.usage),
        "starts": describe_starts(summary.throughput.starts),
        "bottleneck": find_bottleneck(summary.seconds, summary.usage),
        "distributions": distribution_charts(summary),
        "share_tables": share_tables(summary),
        "samples": data.sheet_samples,
    }
