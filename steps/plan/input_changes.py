"""Whether the input of a run is still what it was planned from.

A named run keeps its plan, whatever becomes of its input: whoever corrects rows has to learn that.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptTemplate
from imagekiln.steps.plan.input_files import input_fingerprint, read_input_files
from imagekiln.steps.plan.source_files import expand_pattern
from imagekiln.steps.plan.template_count import TEMPLATE_SETTING
from imagekiln.steps.plan.template_rows import fingerprint_templates
from imagekiln.steps.runs.keys import PLAN_KEY
from imagekiln.steps.runs.plan import InputFacts, Plan, creation_time, parse_plan
from imagekiln.steps.runtime.figures import format_time, pluralize
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.filesystem import modification_time, open_filesystem
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path

# Up to this size, an input is read and hashed. Of a larger one, the times of writing decide.
MAX_READ_BYTES = 64 * 2**20
MAX_REMOTE_FILES = 100  # of a pattern that are looked at: each costs a request
REMEDY = "What changed is not in the run. Set another run_id or --date to plan it"


def describe_input_change(job: Job, plan: Plan) -> str | None:
    """A sentence where the input has changed since the run was planned, or cannot be compared.

    A large input is not read: one that was written again counts as changed, and of one without
    times of writing nothing is said.
    """
    try:
        change = _find_change(job, plan)
    except KilnError as error:
        return f"The input cannot be compared with that of the plan: {error}"
    if change is None:
        return None
    first, *others = job.prompt_patterns or (TEMPLATE_SETTING,)
    names = first + (f" and {len(others)} more" if others else "")
    return f"{names}: {change} since this run was planned. {REMEDY}."


def find_input_change(job: Job) -> str | None:
    """The same for a job whose run may exist; None where it does not, or cannot be read here."""
    plan = _find_named_plan(job)
    return None if plan is None else describe_input_change(job, plan)


def describe_named_plan(job: Job) -> str | None:
    """A sentence where the run that a job names is planned, so that nothing new will be.

    None where it is not, or cannot be read here.
    """
    plan = _find_named_plan(job)
    if plan is None:
        return None
    images = pluralize(plan.counts.images, "image")
    return (
        f"{job.output.rstrip('/')}/{job.run_id}: is planned already, with {images}. The job goes "
        "by that plan, and this is what a new one would be."
    )


def _find_named_plan(job: Job) -> Plan | None:
    if job.run_id is None:
        return None
    with suppress(KilnError):
        store = open_store(f"{job.output.rstrip('/')}/{job.run_id}")
        return parse_plan(store.read(PLAN_KEY), store.uri_of(PLAN_KEY))
    return None


def _find_change(job: Job, plan: Plan) -> str | None:
    entries = list(_iter_entries(job))
    sizes = [entry.get("size") for entry in entries if entry["type"] != "directory"]
    is_sized = len(sizes) == len(entries) and None not in sizes
    if is_sized and sum(filter(None, sizes)) <= MAX_READ_BYTES:
        return _compare_content(job, plan.input)
    if creation_time() <= plan.created_at:
        return None  # by SOURCE_DATE_EPOCH
    written_at = max(filter(None, map(modification_time, entries)), default=0.0)
    if written_at <= plan.created_at.timestamp():
        return None
    return f"has been written again ({format_time(written_at)})"


def _iter_entries(job: Job) -> Iterator[dict[str, Any]]:
    """What file systems list of the input's files; of many remote ones, of the first."""
    patterns = job.prompt_patterns
    if isinstance(job.prompts, PromptTemplate):
        patterns = job.prompts.table_patterns
    for pattern in patterns:
        uris = expand_pattern(pattern)
        if is_remote_uri(pattern) and len(uris) > MAX_REMOTE_FILES:
            yield {"type": "directory"}
            uris = uris[:MAX_REMOTE_FILES]
        for uri in uris:
            filesystem, path = open_filesystem(resolve_path(uri))
            with translate_errors(uri):
                yield filesystem.info(path)


def _compare_content(job: Job, planned: InputFacts) -> str | None:
    with temporary_folder("imagekiln-input-") as name:
        folder = Path(name)
        if isinstance(job.prompts, PromptTemplate):
            fingerprint = fingerprint_templates(job, job.prompts, folder)
            return None if fingerprint == planned.sha256 else "has changed"
        files = read_input_files(job, folder)
    if input_fingerprint(files) == planned.sha256:
        return None
    rows = sum(file.rows for file in files)
    counts = (
        "" if rows == planned.rows else f" ({pluralize(planned.rows, 'row')} then, {rows:,} now)"
    )
    return f"has changed{counts}"
