"""Whether the job's storage does what the job needs, as far as this machine can tell with its own credentials."""

from contextlib import suppress
from uuid import uuid4

from imagekiln.steps.errors import BadInput, KilnError, Missing, TryAgain
from imagekiln.steps.job.dates import DATE_PLACEHOLDER
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import read_tuning_file
from imagekiln.steps.plan.input_files import expand_pattern
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store, require_conditional_writes
from imagekiln.steps.storage.uri import BUNDLED_PREFIX, is_remote_uri
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.templates.workflow import require_reachable_paths

PROBE = b"imagekiln doctor writes this, and removes it\n"
LOGIN_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
LOCAL_ADVICE = "Pods may reach it all the same. Set this machine's credentials and endpoint, and run doctor again."


@doctor_check("places")
def check_paths(job: Job) -> Finding:
    """Pods can reach what the job names: nothing of it lies on this machine."""
    try:
        require_reachable_paths(job)
    except BadInput as error:
        return wrong(str(error), "Pods see no disk of this machine: use a bucket.")
    return ok("Nothing lies on this machine only.")


@doctor_check("output")
def check_output(job: Job) -> Finding:
    """The store takes an object, refuses to write it twice, and lets it be removed."""
    if not is_remote_uri(job.output):
        return unknown(
            f"{job.output} is a place on this machine.", "Write a URI, such as s3://bucket/folder."
        )
    try:
        return _probe_store(open_store(job.output), careful=job.unconditional_writes == "refuse")
    except KilnError as error:
        return _storage_finding(error)


@doctor_check("prompts")
def check_prompts(job: Job) -> Finding:
    """The first object that each of the job's patterns names can be read."""
    undated = [pattern for pattern in job.prompt_patterns if not DATE_PLACEHOLDER.search(pattern)]
    try:
        for pattern in undated:
            _find_first_object(pattern)
    except KilnError as error:
        return _storage_finding(error)
    if len(undated) < len(job.prompt_patterns):
        return unknown(
            "Whose prompts there are depends on the date.", "See `imagekiln plan --date` for one."
        )
    return ok(f"{', '.join(undated)} can be read.")


@doctor_check("tuning")
def check_tuning(job: Job) -> Finding:
    """The file that the job takes its batches from can be read."""
    name = job.batch.tuning or ""
    try:
        read_tuning_file(name)
    except KilnError as error:
        return _storage_finding(error)
    return ok(f"{name} can be read.")


def _probe_store(store: Store, *, careful: bool) -> Finding:
    key = f".imagekiln-doctor-{uuid4().hex}"
    store.create(key, PROBE)
    kept = f" The probe stays, as {store.uri_of(key)}."
    try:
        if careful:
            require_conditional_writes(store, key, PROBE)
    finally:
        with suppress(KilnError):  # a store may let nobody delete, and nothing of ours needs to
            store.remove(key)
            kept = ""
    return ok(f"{store.uri} takes new objects{', each once' if careful else ''}.{kept}")


def _find_first_object(pattern: str) -> None:
    found = expand_pattern(pattern)
    if not found:
        raise Missing(f"{pattern}: no such file or bucket.")
    if pattern.startswith(BUNDLED_PREFIX):
        return
    folder, _, name = found[0].rpartition("/")
    if not open_store(folder).exists(name):
        raise Missing(f"{found[0]}: no such file.")


def _storage_finding(error: KilnError) -> Finding:
    """Away or without a login, a store says nothing of what pods may do; one that refuses does."""
    if isinstance(error, TryAgain) or type(error.__cause__).__name__ in LOGIN_ERRORS:
        return unknown(str(error), LOCAL_ADVICE)
    return wrong(str(error), "Correct the job, or the rights of its key.")
