"""The job that a command was requested to run: by name or as YAML, with changes.

In a pod, the job comes from the workflow's parameters, which the template puts into the environment
as base64.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import fill_date, require_date
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import read_job, validate_job


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job file's name, or the job as YAML with a name for messages, and changes to it.

    An empty string means that the setting is absent.
    """

    source: str
    text: str | None = None
    settings: tuple[str, ...] = ()
    run_id: str = ""
    date: str = ""
    timezone: str = ""
    retry: bool = False


def request_from_environment(environment: Mapping[str, str]) -> JobRequest:
    """Read the request from a workflow's parameters. Raises BadInput."""
    text = _decode_variable(environment, "IMAGEKILN_JOB")
    uri = _decode_variable(environment, "IMAGEKILN_JOB_URI").strip()
    has_text = bool(text.strip())
    if has_text and uri:
        raise BadInput("parameters: both job and job-uri are set. Set one of them.")
    if not has_text and not uri:
        raise BadInput("parameters: neither job nor job-uri is set. Set one of them.")

    retry = _decode_variable(environment, "IMAGEKILN_RETRY").strip().lower()
    if retry not in ("", "false", "true"):
        raise BadInput(f"parameters: retry is {retry!r}. Write true, or leave it empty.")

    return JobRequest(
        source=uri or "job",
        text=text if has_text else None,
        settings=_parse_settings(_decode_variable(environment, "IMAGEKILN_SETTINGS")),
        run_id=_decode_variable(environment, "IMAGEKILN_RUN_ID").strip(),
        # Argo sets this one itself, so it is not encoded.
        date=environment.get("IMAGEKILN_LOGICAL_DATE", "").strip(),
        timezone=_decode_variable(environment, "IMAGEKILN_TIMEZONE").strip(),
        retry=retry == "true",
    )


def resolve_job(request: JobRequest, device: str | None = None) -> Job:
    """Read the requested job, for its date and for the device of the pods.

    Raises BadInput, Missing and TryAgain.
    """
    job = read_job(request.source, request.settings, text=request.text)
    if request.run_id:
        job = _with_setting(job, "run_id", request.run_id, source="run-id")
    job = fill_date(job, request.date, request.timezone)
    return _with_device(require_date(job), device)


def _with_device(job: Job, device: str | None) -> Job:
    if device is None or job.device == device:
        return job
    if job.device != "auto":
        raise BadInput(
            f"job: device is {job.device!r}, and the profile's pods have {device!r}. "
            "Write device: auto, or choose another profile."
        )
    return _with_setting(job, "device", device, source="--device")


def _with_setting(job: Job, name: str, value: str, source: str) -> Job:
    values = job.model_dump()
    values[name] = value
    return validate_job(values, source)


def _parse_settings(text: str) -> tuple[str, ...]:
    """Parse KEY=VALUE settings: one per line, or a JSON list, as in events."""
    lines = text.splitlines()
    if text.lstrip().startswith("["):
        try:
            lines = TypeAdapter(list[str]).validate_json(text)
        except ValueError as error:
            raise BadInput(
                'settings: is not a JSON list of strings. Write ["KEY=VALUE"], or one a line.'
            ) from error
    return tuple(line.strip() for line in lines if line.strip())


def _decode_variable(environment: Mapping[str, str], variable: str) -> str:
    try:
        return base64.b64decode(environment.get(variable, ""), validate=True).decode()
    except ValueError as error:
        raise BadInput(
            f"{variable}: is not base64 text ({error}). "
            "Register the template again: `imagekiln apply JOB`."
        ) from error
