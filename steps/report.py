"""The report: one page with relative pictures, no script and no data URI, so that it opens anywhere."""

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader

from imagekiln.steps import names
from imagekiln.steps.contact import Sample, Samples, thumbnail
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary

WRITERS = 8
STAGES = {
    "load": "load the model",
    "denoise": "text, denoise, decode",
    "encode": "encode and hash",
    "write": "write parts",
    "denoise_waits": "device waits for encoding",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's share of the shards' wall time, in percent."""

    name: str
    seconds: float
    percent: float


def write(store: Store, plan: Plan, summary: Summary, samples: Samples) -> None:
    """Write the page and its pictures into the run."""
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda each: _write_thumbnail(store, *each), enumerate(samples.chosen)))
    store.replace(names.REPORT, page(plan, summary, samples.chosen).encode())


def page(plan: Plan, summary: Summary, chosen: list[Sample]) -> str:
    """The report as HTML. Everything of the user's is escaped."""
    environment = Environment(loader=PackageLoader("imagekiln.steps", "."), autoescape=True, trim_blocks=True)
    environment.filters["visible"] = visible
    template = environment.get_template("report.html.j2")
    return template.render(plan=plan, summary=summary, stages=_stages(summary), pictures=list(enumerate(chosen)))


def visible(text: str) -> str:
    """Text with its control characters, which a page may not hold, made visible."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(sign) == "Cc" else sign for sign in text)


def _write_thumbnail(store: Store, place: int, sample: Sample) -> None:
    store.replace(names.thumbnail(place), thumbnail(store, sample))


def _stages(summary: Summary) -> list[Stage]:
    total = summary.seconds.total
    each = [(name, getattr(summary.seconds, stage)) for stage, name in STAGES.items()]
    return [Stage(name, seconds, 100 * seconds / total if total else 0.0) for name, seconds in each]
