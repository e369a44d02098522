"""The report: one page with relative pictures, no script and no data URI, so that it opens anywhere."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from jinja2 import Environment, PackageLoader

from imagekiln.steps.aggregate.report.bottleneck import find_bottleneck
from imagekiln.steps.aggregate.report.charts import (
    Chart,
    distribution_charts,
    share_tables,
    throughput_chart,
)
from imagekiln.steps.aggregate.report.contact_sheet import ContactSheet, Sample, render_thumbnail
from imagekiln.steps.aggregate.report.gates import gate_sections, top_gates
from imagekiln.steps.aggregate.report.previous_run import compare_summaries, load_previous_summary
from imagekiln.steps.aggregate.report.time_use import summarize_time_use
from imagekiln.steps.aggregate.report.verdict import judge_run
from imagekiln.steps.aggregate.summary import Summary
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

THUMBNAIL_WRITERS = 8
UNFOLDED_FAILURES = 5  # the others are folded away
MAX_FAILURES = 20
MAX_PARTS = 20
FORMAT_PHRASES = {
    "parquet": "in Parquet",
    "webdataset": "in WebDataset tars",
    "files": "as files with sidecars",
}


@dataclass(frozen=True, slots=True)
class ReportData:
    """What a page tells of a run at `uri`: its sums, those of the run before, a sheet of pictures, and some by gate."""

    uri: str
    plan: Plan
    summary: Summary
    previous: Summary | None
    sheet_samples: list[Sample]
    samples_by_gate: dict[str, Sequence[Sample]] = field(default_factory=dict)

    @property
    def samples(self) -> list[Sample]:
        """All pictures, in the order of their numbers."""
        return [*self.sheet_samples, *chain.from_iterable(self.samples_by_gate.values())]


def write_report(store: Store, plan: Plan, summary: Summary, samples: ContactSheet) -> None:
    """Write the page and its pictures into the run, the page last."""
    shown = top_gates(samples.samples_by_gate, summary.marks)
    contents = ReportData(
        store.uri, plan, summary, load_previous_summary(store, plan), samples.samples, shown
    )
    with ThreadPoolExecutor(THUMBNAIL_WRITERS) as pool:
        list(pool.map(lambda each: _write_thumbnail(store, *each), enumerate(contents.samples)))
    write_plots(store, plotted_charts(summary))
    store.replace(REPORT_KEY, render_report(contents).encode())


def plotted_charts(summary: Summary) -> list[Chart]:
    """The charts that have a picture."""
    took = summarize_time_use(summary.seconds, summary.usage)
    each = (
        throughput_chart(summary.throughput),
        took and took.chart,
        *distribution_charts(summary),
    )
    return [chart for chart in each if chart and chart.plot]


def render_report(contents: ReportData) -> str:
    """The report as HTML. Everything of the user's is escaped."""
    environment = Environment(
        loader=PackageLoader("imagekiln.steps.aggregate.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    said = (
        format_count,
        format_number,
        format_bytes,
        format_percent,
        format_duration,
        pluralize,
    )
    environment.filters |= {each.__name__: each for each in said} | {
        "visible": sanitize_page_text,
        "visible_lines": sanitize_lines,
    }
    return environment.get_template("report.html.j2").render(_template_context(contents))


def _template_context(contents: ReportData) -> dict[str, object]:
    """What the template speaks of."""
    summary, before = contents.summary, contents.previous
    return {
        "plan": contents.plan,
        "summary": summary,
        "verdict": judge_run(summary, contents.plan.job, contents.uri),
        "failures": summary.failures[:MAX_FAILURES],
        "first_failures": UNFOLDED_FAILURES,
        "parts": summary.missing_parts[:MAX_PARTS],
        "before": before,
        "changes": compare_summaries(summary, before) if before else [],
        "throughput": throughput_chart(summary.throughput),
        "spreads": distribution_charts(summary),
        "shares_of": share_tables(summary),
        "spent": summarize_time_use(summary.seconds, summary.usage),
        "bottleneck": find_bottleneck(summary.seconds, summary.usage),
        "gates": gate_sections(
            contents.plan.job.gates, summary, contents.samples_by_gate, len(contents.sheet_samples)
        ),
        "pictures": list(enumerate(contents.sheet_samples)),
        "encoding": describe_encoding(contents.plan.job.encoding),
        "laid_down": FORMAT_PHRASES[contents.plan.job.format],
    }


def _write_thumbnail(store: Store, place: int, sample: Sample) -> None:
    store.replace(thumbnail_key(place), render_thumbnail(store, sample))


def write_plots(store: Store, wanted: list[Chart]) -> None:
    """Draw each chart for a light ground and a dark one."""
    if not wanted:
        return
    # Only where something is drawn: matplotlib takes a second to import.
    from imagekiln.steps.aggregate.report import plots

    for chart in wanted:
        for scheme, dark in ((plots.LIGHT_SCHEME, False), (plots.DARK_SCHEME, True)):
            if chart.plot:
                store.replace(plot_key(chart.name, dark=dark), plots.draw_plot(chart.plot, scheme))
