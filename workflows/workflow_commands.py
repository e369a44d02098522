"""The commands for a job on a cluster. Each calls one function of the client, and prints what it gives."""

import click

from imagekiln.workflows.options import connection_options as reach
from imagekiln.workflows.options import date_options, job_options, namespace_options, output_option, workflow_options


@click.command()
@job_options
@date_options
@reach
@click.option("--retry", is_flag=True, help="Make again only what ended failed, blank or missing in the job's run.")
@click.option("--watch", "watched", is_flag=True, help="Stay until it has ended; the exit code then says how.")
@output_option
def submit(
    job: str,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    server: str | None,
    context: str | None,
    retry: bool,
    watched: bool,
    output: str,
) -> None:
    """Have a cluster do the job. Submitted twice, it is done once."""
    from imagekiln.steps.jobfile import read_job
    from imagekiln.workflows import client
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.standing import print_status, print_until_ended

    argo = connect(server, context)
    begun = client.submit(read_job(job, settings), date, timezone, argo, retry=retry)
    print_status(begun, output)
    if watched:
        print_until_ended(client.watch(begun.name, begun.namespace, argo), output)


@click.command()
@workflow_options
@output_option
def watch(name: str, namespace: str, server: str | None, context: str | None, output: str) -> None:
    """Show a workflow's pods, images, rate and time left until it has ended; the exit code says how."""
    from imagekiln.workflows import client
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.standing import print_until_ended

    print_until_ended(client.watch(name, namespace, connect(server, context)), output)


@click.command()
@workflow_options
@click.option("--seconds", type=click.FloatRange(0), help="Give up after so long, with exit code 75.")
@output_option
def wait(
    name: str, namespace: str, server: str | None, context: str | None, seconds: float | None, output: str
) -> None:
    """Wait in silence until a workflow has ended; the exit code says how."""
    from imagekiln.workflows import client
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.standing import exit_with_status, print_status

    ended = client.wait(name, namespace, seconds, connect(server, context))
    print_status(ended, output)
    exit_with_status(ended)


@click.command()
@workflow_options
@output_option
def result(name: str, namespace: str, server: str | None, context: str | None, output: str) -> None:
    """Say how a workflow ended; the exit code says so too, and 75 that it has not."""
    from imagekiln.workflows import client
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.standing import exit_with_status, print_status

    ended = client.result(name, namespace, connect(server, context))
    print_status(ended, output)
    exit_with_status(ended)


@click.command("list")
@namespace_options
@output_option
def list_(namespace: str, server: str | None, context: str | None, output: str) -> None:
    """List the workflows of a namespace, the newest first."""
    from imagekiln.workflows import client
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.show import print_result
    from imagekiln.workflows.standing import status_table

    print_result(client.list_workflows(namespace, connect(server, context)), output, status_table)


@click.command()
@workflow_options
@click.option("--shard", type=click.IntRange(0), help="Only what this shard's pods say.")
@click.option("-f", "--follow", is_flag=True, help="Stay, and print what comes.")
def logs(name: str, namespace: str, server: str | None, context: str | None, shard: int | None, follow: bool) -> None:
    """Print what a workflow's pods have logged."""
    from imagekiln.steps.visible import sanitize_line
    from imagekiln.workflows import pod_logs
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.say import print_text

    for line in pod_logs.logs(name, namespace, shard, connect(server, context), follow=follow):
        print_text(sanitize_line(line))


@click.command()
@workflow_options
def stop(name: str, namespace: str, server: str | None, context: str | None) -> None:
    """End a workflow early. What it has made stays."""
    from imagekiln.workflows import client
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.say import print_text

    client.stop(name, namespace, connect(server, context))
    print_text(f"{name} is stopping. `imagekiln resubmit {name}` goes on from there.")


@click.command()
@workflow_options
@output_option
def resubmit(name: str, namespace: str, server: str | None, context: str | None, output: str) -> None:
    """Run a workflow that has ended again: what is there stays, what is missing is made."""
    from imagekiln.workflows import client
    from imagekiln.workflows.argo import connect
    from imagekiln.workflows.standing import print_status

    print_status(client.resubmit(name, namespace, connect(server, context)), output)


WORKFLOW_COMMANDS = (submit, watch, wait, result, list_, logs, stop, resubmit)
