"""The report: one page with relative pictures, no script and no data URI, so that it opens anywhere."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader

from imagekiln.steps import charts, names, wording
from imagekiln.steps.charts import Chart
from imagekiln.steps.contact import Sample, Samples, thumbnail
from imagekiln.steps.plan import Plan
from imagekiln.steps.previous import changes, previous
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary
from imagekiln.steps.verdict import verdict
from imagekiln.steps.visible import in_lines, in_page

WRITERS = 8
FIRST_FAILURES = 5  # the others are folded away
MOST_FAILURES = 20
MOST_PARTS = 20


@dataclass(frozen=True, slots=True)
class Contents:
    """What a page tells of a run at `uri`: its sums, those of the run before it, and the pictures to show."""

    uri: str
    plan: Plan
    summary: Summary
    before: Summary | None
    pictures: list[Sample]


def write(store: Store, plan: Plan, summary: Summary, samples: Samples) -> None:
    """Write the page and its pictures into the run, the page last."""
    contents = Contents(store.uri, plan, summary, previous(store, plan), samples.chosen)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda each: _write_thumbnail(store, *each), enumerate(contents.pictures)))
    write_plots(store, drawn(summary))
    store.replace(names.REPORT, page(contents).encode())


def drawn(summary: Summary) -> list[Chart]:
    """The charts that have a picture."""
    throughput = charts.rates(summary.throughput)
    return [each for each in (throughput, *charts.spreads(summary)) if each and each.drawing]


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
        "verdict": verdict(summary, contents.uri, contents.plan.job.gates),
        "failures": summary.failures[:MOST_FAILURES],
        "first_failures": FIRST_FAILURES,
        "parts": summary.missing_parts[:MOST_PARTS],
        "before": before,
        "changes": changes(summary, before) if before else [],
        "throughput": charts.rates(summary.throughput),
        "spreads": charts.spreads(summary),
        "shares_of": charts.shares(summary),
        "stages": charts.stages(summary),
        "pictures": list(enumerate(contents.pictures)),
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
