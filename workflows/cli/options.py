"""Options that several commands take."""

from collections.abc import Callable
from typing import ParamSpec

import click

P = ParamSpec("P")


def output_option(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user choose text or JSON."""
    kinds = click.Choice(["text", "json"])
    return click.option(
        "--output", type=kinds, default="text", show_default=True, help="How to print."
    )(command)


def job_options(command: Callable[P, None]) -> Callable[P, None]:
    """Take a JOB and settings on top of it."""
    setting = click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a setting of the job."
    )
    return click.argument("job", metavar="JOB")(setting(command))


def date_options(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user say whose date's batch it is."""
    zone = click.option(
        "--timezone", default="UTC", show_default=True, help="The time zone of {date}."
    )
    date = click.option(
        "--date", default="", help="Whose batch it is: fills {date} in prompts, and names the run."
    )
    return date(zone(command))


def connection_options(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user say by which API a cluster is reached."""
    server = click.option(
        "--server", metavar="URL", help="Argo's server; ARGO_SERVER and ARGO_TOKEN say so too."
    )
    context = click.option("--context", metavar="NAME", help="A context of kubeconfig.")
    return server(context(command))


def namespace_options(command: Callable[P, None]) -> Callable[P, None]:
    """Let the user say in which namespace of a cluster."""
    variable = "IMAGEKILN_NAMESPACE"
    option = click.option(
        "-n",
        "--namespace",
        default="imagekiln",
        show_default=True,
        envvar=variable,
        help="Where on the cluster.",
    )
    return option(connection_options(command))


def workflow_options(command: Callable[P, None]) -> Callable[P, None]:
    """Take the name of a workflow, or of a schedule, on a cluster."""
    return click.argument("name", metavar="NAME")(namespace_options(command))
