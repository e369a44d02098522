"""Arguments and options shared by commands, each declared once.

Options that belong together reach a command as one value, such as a job and its changes as
`JobArguments`, and a cluster as `Cluster`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
import cloup

from imagekiln.workflows.cli.terminal import store_format
from imagekiln.workflows.client.connect import DEFAULT_NAMESPACE, NAMESPACE_VARIABLE

if TYPE_CHECKING:  # help starts fast
    from imagekiln.steps.job.job import Job
    from imagekiln.workflows.client.api import ArgoApi

Command = Callable[..., None]

# Not checked here, since it may be a URI. The type lets shells complete file names.
PATH_OR_URI = click.Path(readable=False)


def examples(*commands: str) -> str:
    """Format the end of a command's help: examples of its use, a line each."""
    lines = [f"  {command}" for command in commands]
    return "\n".join(["\b", "Examples:", *lines])  # \b keeps click from wrapping these lines


format_option = cloup.option(
    "-o",
    "--format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    expose_value=False,
    callback=store_format,
    help="Output format.",
)
settings_option = cloup.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting of the job; repeatable.",
)
date_option = cloup.option(
    "--date",
    default="",
    help="The date of the run: fills {date} in `prompts` and names the run.",
)
timezone_option = cloup.option(
    "--timezone", default="UTC", show_default=True, help="The time zone of {date}."
)
schedule_timezone_option = cloup.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The time zone of the schedule and of {date}.",
)
retry_option = cloup.option(
    "--retry",
    is_flag=True,
    help="Generate only the failed, blank and missing images again.",
)
price_option = cloup.option(
    "--price",
    type=click.FloatRange(min=0),
    help="The price of a GPU-hour, in place of the job's own.",
)
gpus_option = cloup.option(
    "--gpus",
    type=click.IntRange(1),
    metavar="N",
    help="GPUs to use, a process for each; with device: cpu, the number of processes. "
    "Default: all visible GPUs.",
)
run_argument = cloup.argument(
    "run", metavar="RUN", type=PATH_OR_URI, help="The run's folder: a path or URI."
)
output_argument = cloup.argument(
    "folder", metavar="OUTPUT", type=PATH_OR_URI, help="The job's output: a path or URI."
)
source_argument = cloup.argument(
    "source", metavar="RUN_OR_OUTPUT", type=PATH_OR_URI, help="A run, or a job's output with runs."
)


def _job_argument(*, required: bool = True) -> Callable[[Command], Command]:
    return cloup.argument(
        "job",
        metavar="JOB",
        required=required,
        type=PATH_OR_URI,
        help="The job file: a path or URI.",
    )


def _combine(command: Command, name: str, make: Callable[..., object], *parts: str) -> Command:
    """Replace several arguments of a command by one value, made by `make`."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # as click calls it
        combined = make(**{part: kwargs.pop(part) for part in parts})
        command(*args, **{name: combined}, **kwargs)

    return run


@dataclass(frozen=True, slots=True)
class JobArguments:
    """A job file, settings that override its own, and the date of the run."""

    job: str
    settings: tuple[str, ...] = ()
    date: str = ""
    timezone: str = ""

    def read(self) -> "Job":
        """Read the job without its date. Raises BadInput."""
        from imagekiln.steps.job.reader import read_job

        return read_job(self.job, self.settings)

    def resolve(self) -> "Job":
        """Read the job for its date. Raises BadInput."""
        from imagekiln.steps.job.dates import fill_date, require_date

        return require_date(fill_date(self.read(), self.date, self.timezone))


def job_options(command: Command) -> Command:
    """Add a job file and settings that override its own, as `request`."""
    run = _combine(command, "request", JobArguments, "job", "settings")
    return _job_argument()(settings_option(run))


def dated_job_options(command: Command) -> Command:
    """Add a job with its settings and a date, as `request`."""
    run = _combine(command, "request", JobArguments, "job", "settings", "date", "timezone")
    return _job_argument()(settings_option(date_option(timezone_option(run))))


def pod_job_options(command: Command) -> Command:
    """Add a job and its date, as `job`. A pod reads them from its environment."""
    options = (
        _job_argument(required=False),  # in a pod, with --argo
        settings_option,
        date_option,
        timezone_option,
        cloup.option(
            "--argo",
            is_flag=True,
            hidden=True,
            help="Read the job from the environment that the workflow's template sets.",
        ),
        cloup.option(
            "--device",
            type=click.Choice(["cpu", "cuda"]),
            hidden=True,
            help="What `device: auto` means: the device of the pods.",
        ),
    )
    parts = ("job", "settings", "date", "timezone", "argo", "device")
    run = _combine(command, "job", _make_pod_job, *parts)
    for option in reversed(options):
        run = option(run)
    return run


@dataclass(frozen=True, slots=True)
class PodJob:
    """Job of a step. In a pod, `argo` and `retry` come from its environment."""

    job: "Job"
    argo: bool = False
    retry: bool = False


def _make_pod_job(
    job: str | None,
    argo: bool,
    device: str | None,
    **changes: Any,  # noqa: ANN401  # as JobArguments has them
) -> PodJob:
    if argo == (job is not None):
        raise click.UsageError("Pass either JOB or --argo." if argo else "Missing argument 'JOB'.")
    if job is not None:
        return PodJob(JobArguments(job, **changes).resolve())
    from imagekiln.workflows.pod.request import request_from_environment, resolve_job

    request = request_from_environment(os.environ)
    return PodJob(resolve_job(request, device), argo=True, retry=request.retry)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Connection to a cluster: Argo's server, or a context of kubeconfig."""

    server: str | None
    context: str | None

    def connect(self) -> "ArgoApi":
        """Connect to the cluster. Raises BadInput."""
        from imagekiln.workflows.client.connect import connect

        return connect(self.server, self.context)


def cluster_options(command: Command) -> Command:
    """Add the options that select a cluster, as `cluster`."""
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
    return group(_combine(command, "cluster", Cluster, "server", "context"))


def namespace_options(command: Command) -> Command:
    """Add the options that select a cluster and a namespace."""
    option = cloup.option(
        "-n",
        "--namespace",
        default=DEFAULT_NAMESPACE,
        show_default=True,
        envvar=NAMESPACE_VARIABLE,
        show_envvar=True,
        help="The namespace on the cluster.",
    )
    return option(cluster_options(command))


def object_options(command: Command) -> Command:
    """Add the name of a workflow or a schedule, also as NAMESPACE/NAME, as printed by lists."""

    @wraps(command)
    def run(*args: Any, name: str, namespace: str, **kwargs: Any) -> None:  # noqa: ANN401
        prefix, _, name = name.rpartition("/")
        command(*args, name=name, namespace=prefix or namespace, **kwargs)

    argument = cloup.argument("name", metavar="NAME", help="Its name, or NAMESPACE/NAME.")
    return argument(namespace_options(run))
