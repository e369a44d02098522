"""What was asked for: a job by name or as text, and what goes on top of it. On a cluster, the environment says it."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.dates import job_for_date, parse_moment, parse_time_zone, require_date
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import read_job, validate_job


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job's name, its text where it is in no file, and changes; empty is absent."""

    source: str
    text: str | None = None
    settings: tuple[str, ...] = ()
    run_id: str = ""
    date: str = ""
    timezone: str = ""
    retry: bool = False


def request_from_environment(environment: Mapping[str, str]) -> JobRequest:
    """What the parameters of a workflow say, as its template puts them into the environment. Raises BadInput."""
    variables = ("JOB", "JOB_URI", "RUN_ID", "TIMEZONE", "SETTINGS", "RETRY")
    text, uri, run_id, timezone, settings, retry = (
        _decode_variable(environment, f"IMAGEKILN_{name}") for name in variables
    )
    if bool(text.strip()) == bool(uri.strip()):
        raise BadInput(
            f"{'Both of' if text.strip() else 'Neither of'} job and job-uri are given. Give one of them."
        )
    date = environment.get("IMAGEKILN_LOGICAL_DATE", "").strip()
    if (again := retry.strip().lower()) not in ("", "false", "true"):
        raise BadInput(f"retry is {retry!r}. Write true, or leave it empty.")
    name, text_or_none = uri.strip() or "job", text if text.strip() else None
    return JobRequest(
        name,
        text_or_none,
        _parse_settings(settings),
        run_id.strip(),
        date,
        timezone.strip(),
        again == "true",
    )


def resolve_job(asked: JobRequest, device: str | None = None) -> Job:
    """The job that was asked for, on the device that the pods have. Raises BadInput, Missing, TryAgain."""
    job = read_job(asked.source, asked.settings, text=asked.text)
    if asked.run_id:
        job = validate_job(job.model_dump() | {"run_id": asked.run_id}, "run-id")
    if asked.date:
        zone = parse_time_zone(asked.timezone)
        job = job_for_date(job, parse_moment(asked.date, zone), zone)
    return _with_device(device, require_date(job))


def _with_device(device: str | None, job: Job) -> Job:
    if device is None or job.device == device:
        return job
    if job.device != "auto":
        raise BadInput(
            f"the job asks for device {job.device!r}, and these pods have {device!r}. Write device: auto."
        )
    return validate_job(job.model_dump() | {"device": device}, "--device")


def _parse_settings(settings: str) -> tuple[str, ...]:
    """The settings, one a line, or as an event has them: a list in JSON."""
    lines: object = settings.splitlines()
    if settings.lstrip().startswith("["):
        try:
            lines = json.loads(settings)
        except ValueError as error:
            raise BadInput(
                f"settings: is no list in JSON ({error}). Write one KEY=VALUE a line."
            ) from error
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise BadInput('settings: are no texts. Write ["KEY=VALUE"].')
    return tuple(line.strip() for line in lines if line.strip())


def _decode_variable(environment: Mapping[str, str], variable: str) -> str:
    try:
        return base64.b64decode(environment.get(variable, ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise BadInput(
            f"{variable}: is no base64 of a text ({error}). Render the template again."
        ) from error
