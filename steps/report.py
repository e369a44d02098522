"""The report: one page with relative pictures, no script and no data URI, so that it opens anywhere."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from jinja2 import Environment, PackageLoader

from imagekiln.steps import charts, names, wording
from imagekiln.steps.bottleneck import find_bottleneck
from imagekiln.steps.charts import Chart
from imagekiln.steps.contact import ContactSheet, render_thumbnail
from imagekiln.steps.encodings import describe_encoding
from imagekiln.steps.lot import Sample
from imagekiln.steps.marked import gate_sections, top_gates
from imagekiln.steps.plan import Plan
from imagekiln.steps.previous import compare_summaries, load_previous_summary
from imagekiln.steps.spent import summarize_time_use
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary
from imagekiln.steps.verdict import judge_run
from imagekiln.steps.visible import sanitize_lines, sanitize_page_text

THUMBNAIL_WRITERS = 8
UNFOLDED_FAILURES = 5  # the others are folded away
MAX_FAILURES = 20
MAX_PARTS = 20
FORMAT_PHRASES = {"parquet": "in Parquet", "webdataset": "in WebDataset tars", "files": "as files with sidecars"}


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
    contents = ReportData(store.uri, plan, summary, load_previous_summary(store, plan), samples.samples, shown)
    with ThreadPoolExecutor(THUMBNAIL_WRITERS) as pool:
        list(pool.map(lambda each: _write_thumbnail(store, *each), enumerate(contents.samples)))
    write_plots(store, plotted_charts(summary))
    store.replace(names.REPORT_KEY, render_report(contents).encode())


def plotted_charts(summary: Summary) -> list[Chart]:
    """The charts that have a picture."""
    took = summarize_time_use(summary.seconds, summary.usage)
    each = (charts.throughput_chart(summary.throughput), took and took.chart, *charts.distribution_charts(summary))
    return [chart for chart in each if chart and chart.plot]


def render_report(contents: ReportData) -> str:
    """The report as HTML. Everything of the user's is escaped."""
    environment = Environment(
        loader=PackageLoader("imagekiln.steps", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    said = (
        wording.format_count,
        wording.format_number,
        wording.format_bytes,
        wording.format_percent,
        wording.format_duration,
        wording.pluralize,
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
        "throughput": charts.throughput_chart(summary.throughput),
        "spreads": charts.distribution_charts(summary),
        "shares_of": charts.share_tables(summary),
        "spent": summarize_time_use(summary.seconds, summary.usage),
        "bottleneck": find_bottleneck(summary.seconds, summary.usage),
        "gates": gate_sections(contents.plan.job.gates, summary, contents.samples_by_gate, len(contents.sheet_samples)),
        "pictures": list(enumerate(contents.sheet_samples)),
        "encoding": describe_encoding(contents.plan.job.encoding),
        "laid_down": FORMAT_PHRASES[contents.plan.job.format],
    }


def _write_thumbnail(store: Store, place: int, sample: Sample) -> None:
    store.replace(names.thumbnail_key(place), render_thumbnail(store, sample))


def write_plots(store: Store, wanted: list[Chart]) -> None:
    """Draw each chart for a light ground and a dark one."""
    if not wanted:
        return
    # Only where something is drawn: matplotlib takes a second to import.
    from imagekiln.steps import plots

    for chart in wanted:
        for scheme, dark in ((plots.LIGHT_SCHEME, False), (plots.DARK_SCHEME, True)):
            if chart.plot:
                store.replace(names.plot_key(chart.name, dark=dark), plots.draw_plot(chart.plot, scheme))
