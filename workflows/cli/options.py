"""Arguments and options that several commands share."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import click
import cloup

from imagekiln.workflows.client.connect import DEFAULT_NAMESPACE, NAMESPACE_VARIABLE

if TYPE_CHECKING:
    from imagekiln.steps.job.job import Job
    from imagekiln.workflows.pod.request import JobRequest

P = ParamSpec("P")
POD_JOB_OPTIONS = ("job", "settings", "date", "timezone", "argo", "device")

# Not checked here: a URI is no path on this machine. The type lets shells complete file names.
PATH_OR_URI = click.Path(readable=False)


def examples(*commands: str) -> str:
    """The end of a command's help: ways to call it, a line each."""
    lines = [f"  {command}" for command in commands]
    return "\n".join(["\b", "Examples:", *lines])  # \b: click does not wrap these lines


def format_option(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user choose between text and JSON."""
    option = cloup.option(
        "-o",
        "--format",
        "output_format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Output format.",
    )
    return option(command)


def settings_option(command: Callable[P, None]) -> Callable[P, None]:
    """Take settings that override those of the job file."""
    option = cloup.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a setting of the job; repeatable.",
    )
    return option(command)


def job_options(command: Callable[P, None]) -> Callable[P, None]:
    """Take a job file, and settings that override its own."""
    argument = cloup.argument(
        "job", metavar="JOB", type=PATH_OR_URI, help="The job file: a path or URI."
    )
    return argument(settings_option(command))


@dataclass(frozen=True, slots=True)
class PodJob:
    """The job of a step: from the command line, or `argo`, from the environment of a pod."""

    request: "JobRequest"
    device: str | None
    argo: bool

    def resolve(self) -> "Job":
        """Read the job. Raises BadInput."""
        from imagekiln.workflows.pod.request import resolve_job

        return resolve_job(self.request, self.device)


def pod_job_options(command: Callable[P, None]) -> Callable[..., None]:
    """Take a job and its date, as `PodJob`; a pod names none, but has it in its environment."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # as click calls it
        kwargs["job"] = _pod_job(**{name: kwargs.pop(name) for name in POD_JOB_OPTIONS})
        command(*args, **kwargs)

    argument = cloup.argument(
        "job",
        metavar="JOB",
        required=False,  # in a pod, with --argo
        type=PATH_OR_URI,
        help="The job file: a path or URI.",
    )
    argo = cloup.option(
        "--argo",
        is_flag=True,
        hidden=True,
        help="Read the job from the environment that the workflow's template sets.",
    )
    device = cloup.option(
        "--device",
        type=click.Choice(["cpu", "cuda"]),
        hidden=True,
        help="What `device: auto` means: the device of the pods.",
    )
    return argument(settings_option(date_options(argo(device(run)))))


def _pod_job(
    job: str | None,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    argo: bool,
    device: str | None,
) -> PodJob:
    from imagekiln.workflows.pod.request import JobRequest, request_from_environment

    if job is None:
        if not argo:
            raise click.UsageError("Missing argument 'JOB'.")
        return PodJob(request_from_environment(os.environ), device, argo)
    if argo:
        raise click.UsageError("Pass either JOB or --argo.")
    request = JobRequest(job, settings=settings, date=date, timezone=timezone)
    return PodJob(request, device, argo)


def gpus_option(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user say how many GPUs to use."""
    option = cloup.option(
        "--gpus",
        type=click.IntRange(1),
        metavar="N",
        help=(
            "GPUs to use, a process for each; with device: cpu, the number of processes. "
            "Default: all visible GPUs."
        ),
    )
    return option(command)


def run_argument(command: Callable[P, None]) -> Callable[P, None]:
    """Take the run to work on."""
    argument = cloup.argument(
        "run", metavar="RUN", type=PATH_OR_URI, help="The run's folder: a path or URI."
    )
    return argument(command)


def output_argument(command: Callable[P, None]) -> Callable[P, None]:
    """Take the output that holds the runs to work on."""
    argument = cloup.argument(
        "folder", metavar="OUTPUT", type=PATH_OR_URI, help="The job's output: a path or URI."
    )
    return argument(command)


def date_options(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user say which date the run is for."""
    date = cloup.option(
        "--date",
        default="",
        help="The date of the run: fills {date} in `prompts` and names the run.",
    )
    timezone = cloup.option(
        "--timezone", default="UTC", show_default=True, help="The time zone of {date}."
    )
    return date(timezone(command))


def connection_options(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user say how to reach the cluster."""
    group = cloup.option_group(
        "Connection",
        cloup.option(
            "--server",
            metavar="URL",
            help="Argo's server; default: ARGO_SERVER, with ARGO_TOKEN.",
        ),
        cloup.option(
            "--context",
            metavar="NAME",
            help="A context of kubeconfig, to use the Kubernetes API instead.",
        ),
    )
    return group(command)


def namespace_options(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user say which namespace of which cluster."""
    option = cloup.option(
        "-n",
        "--namespace",
        default=DEFAULT_NAMESPACE,
        show_default=True,
        envvar=NAMESPACE_VARIABLE,
        show_envvar=True,
        help="The namespace on the cluster.",
    )
    return option(connection_options(command))


def object_options(command: Callable[P, None]) -> Callable[P, None]:
    """Take the name of a workflow or a schedule on a cluster, also as NAMESPACE/NAME.

    That is how lists and `watch` print it.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        namespace, slash, name = str(kwargs["name"]).partition("/")
        if slash:
            kwargs["namespace"] = namespace
            kwargs["name"] = name
        command(*args, **kwargs)

    argument = cloup.argument("name", metavar="NAME", help="Its name, or NAMESPACE/NAME.")
    return argument(namespace_options(run))
