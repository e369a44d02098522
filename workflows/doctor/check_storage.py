"""The job's storage and model, as far as this machine can tell with its own credentials."""

from contextlib import suppress
from uuid import uuid4

from imagekiln.steps.errors import BadInput, KilnError, Missing, StorageRefused, TryAgain
from imagekiln.steps.job.dates import DATE_PLACEHOLDER
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptList, PromptTemplate
from imagekiln.steps.job.tuning_file import read_tuning_file
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.plan.source_files import expand_pattern
from imagekiln.steps.plan.templates import load_recipes
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.filesystem import open_object
from imagekiln.steps.storage.store import Store, require_conditional_writes
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path
from imagekiln.workflows.client.failures import PLAINTEXT_ERROR
from imagekiln.workflows.doctor.check import DoctorCheck, doctor_check, ok, unknown, wrong
from imagekiln.workflows.templates.workflow import require_reachable_paths

PROBE = b"imagekiln doctor writes this, and removes it\n"
LOGIN_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
# Doctor reads no value of a Secret, so it cannot try the key that pods have.
WHOSE_CREDENTIALS = "with this machine's credentials"
PLAINTEXT_ADVICE = "The store does not use TLS: write http:// in AWS_ENDPOINT_URL."
LOCAL_ADVICE = (
    "Pods may reach it, even if this machine does not. To check from here, set AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL, and run doctor again."
)


def read_weights(job: Job) -> int | KilnError | None:
    """Return the bytes of the models' weights; None if unknown, or the error of reading them."""
    try:
        return resolve_model(job).weights_bytes
    except KilnError as error:
        return error


@doctor_check("model")
def check_model(job: Job, weights: int | KilnError | None) -> DoctorCheck:
    """The job's models can be found, and fit each other."""
    if not isinstance(weights, KilnError):
        return ok(f"{job.model.id} can be read.")
    says, remedy = split_remedy(weights)
    # Pods may reach more, or have another token.
    if isinstance(weights, TryAgain | Missing) or weights.__cause__ is not None:
        return unknown(says, f"{remedy} Pods may reach it, even if this machine does not.".strip())
    return wrong(says, remedy)


@doctor_check("paths")
def check_paths(job: Job) -> DoctorCheck:
    """Pods can reach every path that the job names."""
    try:
        require_reachable_paths(job)
    except BadInput as error:
        says, remedy = split_remedy(error)
        return wrong(says, remedy or "Pods cannot read this machine's disk: use a bucket.")
    return ok("The job names no path on this machine.")


@doctor_check("output")
def check_output(job: Job) -> DoctorCheck:
    """The store takes an object, refuses to overwrite it, and lets it be removed."""
    if not is_remote_uri(job.output):
        return unknown(
            f"{job.output} is a path on this machine.", "Write a URI, such as s3://bucket/folder."
        )
    careful = job.unconditional_writes == "refuse"
    try:
        store = open_store(job.output)
        leftover = probe_store(store, careful=careful)
    except KilnError as error:
        return storage_finding(error)
    conditions = ", and refuses to overwrite them" if careful else ""
    return ok(f"{store.uri} takes new objects{conditions}, {WHOSE_CREDENTIALS}.{leftover}")


@doctor_check("export")
def check_export(uri: str) -> DoctorCheck:
    """A destination of the job's `export` takes an object, and lets it be removed."""
    if not is_remote_uri(uri):
        return unknown(f"{uri} is a path on this machine.", "Write a URI, as paths says.")
    try:
        leftover = probe_store(open_store(uri), careful=False)
    except KilnError as error:
        return storage_finding(error)
    return ok(f"{uri} takes new objects, {WHOSE_CREDENTIALS}.{leftover}")


@doctor_check("prompts")
def check_prompts(job: Job) -> DoctorCheck:
    """There are prompts, and the first file that each of the job's patterns matches can be read."""
    if any(map(DATE_PLACEHOLDER.search, job.prompt_patterns)):
        return unknown(
            "Which prompts there are depends on the date.",
            "Check one date: `imagekiln doctor JOB --date 2026-11-21`.",
        )
    if isinstance(job.prompts, PromptList):
        return ok("The prompts stand in the job; `submit` stores them under its output.")
    if isinstance(job.prompts, PromptTemplate):
        return _check_templates(job.prompts)
    try:
        for pattern in job.prompt_patterns:
            _read_first_file(pattern)
    except KilnError as error:
        return storage_finding(error)
    return ok(f"{', '.join(job.prompt_patterns)} can be read {WHOSE_CREDENTIALS}.")


def _read_first_file(pattern: str) -> None:
    uris = expand_pattern(pattern)
    if not uris:
        raise Missing(f"{pattern}: no such file or bucket.")
    with translate_errors(uris[0]), open_object(resolve_path(uris[0]), block_bytes=1) as file:
        file.read(1)


def _check_templates(settings: PromptTemplate) -> DoctorCheck:
    """The templates and their wildcard files can be read, and there is a table."""
    try:
        count = load_recipes(settings).combinations
        absent = [name for name in settings.table_patterns if not expand_pattern(name)]
    except KilnError as error:
        return storage_finding(error)
    if absent:
        return wrong(f"{absent[0]}: there is no such file.", "Correct prompts.table.")
    return ok(f"The templates can be read, and make {pluralize(count, 'prompt')} of a row.")


@doctor_check("tuning")
def check_tuning(job: Job) -> DoctorCheck:
    """The file that the job takes its batch sizes from can be read."""
    name = job.batch.tuning or ""
    try:
        read_tuning_file(name)
    except KilnError as error:
        return storage_finding(error)
    return ok(f"{name} can be read.")


def probe_store(store: Store, *, careful: bool) -> str:
    """Create a small object, with `careful` try to overwrite it, and remove it.

    Returns a sentence that names the object where it could not be removed, else nothing. A bucket
    that does not exist is looked for first: some stores would create it.
    """
    key = f".imagekiln-doctor-{uuid4().hex}"
    _require_bucket(store, key)
    store.create(key, PROBE)
    leftover = f" The probe could not be removed: {store.uri_of(key)}."
    try:
        if careful:
            require_conditional_writes(store, key, PROBE)
    finally:
        with suppress(KilnError):  # a store may forbid deletion: no step of a job needs it
            store.remove(key)
            leftover = ""
    return leftover


def _require_bucket(store: Store, key: str) -> None:
    """Raise if the store knows no such bucket. A key that may only write proves nothing."""
    try:
        store.exists(key)
    except StorageRefused as error:
        if not isinstance(error.__cause__, PermissionError):
            raise


def storage_finding(error: KilnError) -> DoctorCheck:
    """A store that rejects this machine is wrong; one out of reach says nothing about pods."""
    says, remedy = split_remedy(error)
    if PLAINTEXT_ERROR in says:
        return wrong(says, PLAINTEXT_ADVICE)
    if isinstance(error, TryAgain) or type(error.__cause__).__name__ in LOGIN_ERRORS:
        return unknown(says, LOCAL_ADVICE)
    return wrong(says, remedy or "Correct the job, or the rights of the key that you use.")


def split_remedy(error: KilnError) -> tuple[str, str]:
    """Split an error into what is wrong and what to do about it; the latter may be empty."""
    says, separator, remedy = str(error).rpartition(". ")
    return (f"{says}.", remedy) if separator else (str(error), "")
