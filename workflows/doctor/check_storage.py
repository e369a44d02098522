"""Checks of the job's storage and model, made with the credentials of this machine."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import cast
from uuid import uuid4

from imagekiln.steps.errors import KilnError, Missing, StorageRefused, TryAgain
from imagekiln.steps.job.dates import DATE_PLACEHOLDER
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.prompts import PromptList, PromptTemplate
from imagekiln.steps.job.tuning_file import read_tuning_file
from imagekiln.steps.models.resolve import resolve_model
from imagekiln.steps.plan.source_files import expand_pattern
from imagekiln.steps.plan.source_runs import require_finished
from imagekiln.steps.plan.templates import load_recipes
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.filesystem import open_object
from imagekiln.steps.storage.store import Store, require_conditional_writes
from imagekiln.steps.storage.uri import is_remote_uri, resolve_path
from imagekiln.workflows.doctor.check import (
    DoctorCheck,
    Found,
    Weights,
    doctor_check,
    ok,
    split_remedy,
    unknown,
    wrong,
)
from imagekiln.workflows.templates.workflow import require_reachable_paths

PROBE = b"imagekiln doctor writes this, and removes it\n"
LOGIN_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
# Doctor reads no value of a Secret, so it cannot try the pods' key.
WHOSE_CREDENTIALS = "with this machine's credentials"
LOCAL_ADVICE = (
    "Pods may reach it, even if this machine does not. To check from here, set AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL, and run doctor again."
)


def read_weights(job: Job) -> Weights:
    """Read the sizes of the models' weights, empty if unknown, or the reading error."""
    try:
        return resolve_model(job).weights
    except KilnError as error:
        return error


def explain_store(check: Callable[[Job], Found]) -> Callable[[Job], Found]:
    """Turn a storage error of a check into its result. A store that rejects this machine is wrong.

    An unreachable store is unknown, since pods may still reach it.
    """

    @wraps(check)
    def explained(job: Job) -> Found:
        try:
            return check(job)
        except KilnError as error:
            return cast("Found", _store_finding(error))

    return explained


def _store_finding(error: KilnError) -> DoctorCheck:
    says, remedy = split_remedy(error)
    if isinstance(error, TryAgain) or type(error.__cause__).__name__ in LOGIN_ERRORS:
        return unknown(says, LOCAL_ADVICE)
    return wrong(says, remedy or "Correct the job, or the rights of the key that you use.")


@doctor_check("model")
def check_model(job: Job, weights: Weights) -> DoctorCheck:
    """Check that the job's models exist, and fit each other."""
    if not job.draws:
        return ok("The job draws nothing, and so needs no model.")
    if not isinstance(weights, KilnError):
        return ok(f"{job.model.id} can be read.")
    says, remedy = split_remedy(weights)
    # Pods may reach more, or have another token.
    if isinstance(weights, TryAgain | Missing) or weights.__cause__ is not None:
        return unknown(says, f"{remedy} Pods may reach it, even if this machine does not.".strip())
    return wrong(says, remedy)


@doctor_check("paths")
@explain_store
def check_paths(job: Job) -> DoctorCheck:
    """Check that pods can reach every path that the job names."""
    require_reachable_paths(job)
    return ok("The job names no path on this machine.")


@doctor_check("output")
@explain_store
def check_output(job: Job) -> DoctorCheck:
    """Check that the output accepts an object, refuses to overwrite it, and allows its removal."""
    if not is_remote_uri(job.output):
        return unknown(
            f"{job.output} is a path on this machine.", "Write a URI, such as s3://bucket/folder."
        )
    careful = job.unconditional_writes == "refuse"
    leftover = probe_store(open_store(job.output), careful=careful)
    conditions = ", and refuses to overwrite them" if careful else ""
    return ok(f"{job.output} takes new objects{conditions}, {WHOSE_CREDENTIALS}.{leftover}")


@doctor_check("export")
@explain_store
def check_export(job: Job) -> DoctorCheck | None:
    """Check that the destinations of the job's `export` accept an object, and allow its removal."""
    uris = [destination.to for destination in job.export if is_remote_uri(destination.to)]
    leftovers = [probe_store(open_store(uri), careful=False) for uri in uris]
    if not uris:
        return None
    return ok(f"{', '.join(uris)}: new objects, {WHOSE_CREDENTIALS}.{''.join(leftovers)}")


@doctor_check("prompts")
@explain_store
def check_prompts(job: Job) -> DoctorCheck:
    """Check that the first prompt file of each of the job's patterns exists and can be read."""
    if any(map(DATE_PLACEHOLDER.search, job.prompt_patterns)):
        return unknown(
            "Which prompts there are depends on the date.",
            "Check one date: `imagekiln doctor JOB --date 2026-11-21`.",
        )
    if isinstance(job.prompts, PromptList):
        return ok("The prompts stand in the job; `submit` stores them under its output.")
    patterns = job.prompt_patterns
    if isinstance(job.prompts, PromptTemplate):
        load_recipes(job.prompts)
        patterns = job.prompts.table_patterns
    if job.source_run is not None:
        require_finished(job.source_run)
        patterns = ()
    for pattern in patterns:
        _read_first_file(pattern)
    names = ", ".join(patterns) or job.source_run or "The templates"
    return ok(f"{names} can be read {WHOSE_CREDENTIALS}.")


def _read_first_file(pattern: str) -> None:
    uris = expand_pattern(pattern)
    if not uris:
        raise Missing(f"{pattern}: no such file or bucket.")
    with translate_errors(uris[0]), open_object(resolve_path(uris[0]), block_bytes=1) as file:
        file.read(1)


@doctor_check("tuning")
@explain_store
def check_tuning(job: Job) -> DoctorCheck | None:
    """Check that the job's tuning file can be read."""
    name = job.batch.tuning
    if name is None:
        return None
    read_tuning_file(name)
    return ok(f"{name} can be read.")


def probe_store(store: Store, *, careful: bool) -> str:
    """Create a small object, with `careful` try to overwrite it, and remove it.

    Returns a sentence that names the object if it could not be removed, else an empty string. A
    missing bucket is detected before, since some stores would create it.
    """
    key = f".imagekiln-doctor-{uuid4().hex}"
    _require_bucket(store, key)
    store.create(key, PROBE)
    leftover = f" The probe could not be removed: {store.uri_of(key)}."
    try:
        if careful:
            require_conditional_writes(store, key, PROBE)
    finally:
        with suppress(KilnError):  # deletion may be forbidden, and no step needs it
            store.remove(key)
            leftover = ""
    return leftover


def _require_bucket(store: Store, key: str) -> None:
    """Raise an error if the bucket does not exist. A write-only key cannot tell."""
    try:
        store.exists(key)
    except StorageRefused as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
