"""The report: one page with relative pictures, no script and no data URI, so that it opens anywhere."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from jinja2 import Environment, PackageLoader

from imagekiln.steps import charts, names, wording
from imagekiln.steps.bottleneck import bottleneck
from imagekiln.steps.charts import Chart
from imagekiln.steps.contact import Samples, thumbnail
from imagekiln.steps.encodings import in_words
from imagekiln.steps.lot import Sample
from imagekiln.steps.marked import marked, most_marked
from imagekiln.steps.plan import Plan
from imagekiln.steps.previous import changes, previous
from imagekiln.steps.spent import spent
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary
from imagekiln.steps.verdict import verdict
from imagekiln.steps.visible import in_lines, in_page

WRITERS = 8
FIRST_FAILURES = 5  # the others are folded away
MOST_FAILURES = 20
MOST_PARTS = 20
FORMATS = {"parquet": "in Parquet", "webdataset": "in WebDataset tars", "files": "as files with sidecars"}


@dataclass(frozen=True, slots=True)
class Contents:
    """What a page tells of a run at `uri`: its sums, those of the run before, a sheet of pictures, and some by gate."""

    uri: str
    plan: Plan
    summary: Summary
    before: Summary | None
    sheet: list[Sample]
    marked: dict[str, Sequence[Sample]] = field(default_factory=dict)

    @property
    def pictures(self) -> list[Sample]:
        """All pictures, in the order of their numbers."""
        return [*self.sheet, *chain.from_iterable(self.marked.values())]


def write(store: Store, plan: Plan, summary: Summary, samples: Samples) -> None:
    """Write the page and its pictures into the run, the page last."""
    shown = most_marked(samples.marked, summary.marks)
    contents = Contents(store.uri, plan, summary, previous(store, plan), samples.chosen, shown)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda each: _write_thumbnail(store, *each), enumerate(contents.pictures)))
    write_plots(store, drawn(summary))
    store.replace(names.REPORT, page(contents).encode())


def drawn(summary: Summary) -> list[Chart]:
    """The charts that have a picture."""
    took = spent(summary.seconds, summary.usage)
    each = (charts.rates(summary.throughput), took and took.chart, *charts.spreads(summary))
    return [chart for chart in each if chart and chart.drawing]


def page(contents: Contents) -> str:
    """The report as HTML. Everything of the user's is escaped."""
    environment = Environment(
        loader=PackageLoader("imagekiln.steps", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    said = (wording.count, wording.figure, wording.size, wording.percent, wording.seconds, wording.of)
    environment.filters |= {each.__name__: each for each in said} | {"visible": in_page, "visible_lines": in_lines}
    return environment.get_template("report.html.j2").render(_told(contents))


def _told(contents: Contents) -> dict[str, object]:
    """What the template speaks of."""
    summary, before = contents.summary, contents.before
    return {
        "plan": contents.plan,
        "summary": summary,
        "verdict": verdict(summary, contents.plan.job, contents.uri),
        "failures": summary.failures[:MOST_FAILURES],
        "first_failures": FIRST_FAILURES,
        "parts": summary.missing_parts[:MOST_PARTS],
        "before": before,
        "changes": changes(summary, before) if before else [],
        "throughput": charts.rates(summary.throughput),
        "spreads": charts.spreads(summary),
        "shares_of": charts.shares(summary),
        "spent": spent(summary.seconds, summary.usage),
        "bottleneck": bottleneck(summary.seconds, summary.usage),
        "gates": marked(contents.plan.job.gates, summary, contents.marked, len(contents.sheet)),
        "pictures": list(enumerate(contents.sheet)),
        "encoding": in_words(contents.plan.job.encoding),
        "laid_down": FORMATS[contents.plan.job.format],
    }


def _write_thumbnail(store: Store, place: int, sample: Sample) -> None:
    store.replace(names.thumbnail(place), thumbnail(store, sample))


def write_plots(store: Store, wanted: list[Chart]) -> None:
    """Draw each chart for a light ground and a dark one."""
    if not wanted:
        return
    # Only where something is drawn: matplotlib takes a second to import.
    from imagekiln.steps import plots

    for chart in wanted:
        for scheme, dark in ((plots.LIGHT, False), (plots.DARK, True)):
            if chart.drawing:
                store.replace(names.plot(chart.name, dark=dark), plots.draw(chart.drawing, scheme))
