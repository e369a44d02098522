"""A finished run as a notebook shows it: counts, a few images, and where dataset and report are."""

from base64 import b64encode
from html import escape

import pyarrow.compute as pc

from imagekiln.steps.aggregate.report.contact_sheet import (
    Sample,
    read_sample,
    render_thumbnail,
    to_samples,
)
from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.errors import KilnError
from imagekiln.steps.runs.keys import REPORT_KEY
from imagekiln.steps.runs.manifest import read_manifest
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runtime.sanitize import sanitize_page_text
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

MAX_THUMBNAILS = 6
THUMBNAIL_STYLE = "display:inline-block; width:128px; margin:0 8px 8px 0; vertical-align:top"
PROMPT_STYLE = "display:block; overflow:hidden; white-space:nowrap; text-overflow:ellipsis"


def render_run(uri: str, summary: Summary) -> str:
    """The run as HTML without scripts or links to files. Texts of the user's are escaped."""
    store = open_store(uri)
    report = store.uri_of(REPORT_KEY)
    others = {status: count for status, count in summary.statuses.items() if status != "ok"}
    counts = {"ok": summary.ok, **others}
    statuses = [f"{count:,} {status}" for status, count in counts.items()]
    lines = [
        f"<p><b>{_escape(summary.run_id)}</b>: {summary.images:,} images "
        f"({_escape(', '.join(statuses))})</p>",
        *map(_render_thumbnail, _load_thumbnails(store)),
        f"<p>Dataset: <code>{_escape(uri)}</code><br>Report: <code>{_escape(report)}</code></p>",
    ]
    return f"<div>{''.join(lines)}</div>"


def _load_thumbnails(store: Store) -> list[tuple[Sample, bytes]]:
    """A few images of the first shard that are ok. What cannot be read is not shown."""
    try:
        shards = load_plan(store).shards
        if not shards:
            return []
        manifest = read_manifest(store, 0, shards[0].images)
        ok_rows = manifest.filter(pc.equal(manifest["status"], "ok"))
        step = max(1, ok_rows.num_rows // MAX_THUMBNAILS)
        indices = list(range(0, ok_rows.num_rows, step))[:MAX_THUMBNAILS]
        samples = to_samples(ok_rows.take(indices))
        return [
            (sample, render_thumbnail(store, sample, read_sample(store, sample)))
            for sample in samples
        ]
    except KilnError:
        return []


def _render_thumbnail(thumbnail: tuple[Sample, bytes]) -> str:
    sample, jpeg = thumbnail
    prompt = _escape(sample.prompt)
    data = b64encode(jpeg).decode("ascii")
    return (
        f'<span style="{THUMBNAIL_STYLE}"><img style="width:100%" alt="{prompt}" '
        f'title="{prompt}" src="data:image/jpeg;base64,{data}">'
        f'<small style="{PROMPT_STYLE}">{prompt}</small></span>'
    )


def _escape(text: str) -> str:
    return escape(sanitize_page_text(text), quote=True)
