"""The commands that have to do with a cluster: what a person calls, and what only pods do."""

import click

from imagekiln.workflows.options import job_options


@click.command()
@job_options
@click.option("--cron", "schedules", multiple=True, metavar="CRON", help='Run it on a schedule, such as "30 1 * * *".')
@click.option("--timezone", default="UTC", show_default=True, help="The time zone of the schedule and of {date}.")
@click.option("--event", is_flag=True, help="Run what is posted to Argo's server.")
def render(job: str, settings: tuple[str, ...], schedules: tuple[str, ...], timezone: str, event: bool) -> None:
    """Print what runs the job on a cluster, as YAML for kubectl apply."""
    from imagekiln.steps.dated import parse_time_zone
    from imagekiln.steps.jobfile import read_job
    from imagekiln.workflows.render import render_manifests as rendered
    from imagekiln.workflows.say import print_text

    parse_time_zone(timezone)
    print_text(rendered(read_job(job, settings), schedules, timezone, event=event), nl=False)


@click.command()
@click.argument("run", metavar="RUN")
def fetch(run: str) -> None:
    """Bring the files of a planned run's model into this machine's cache."""
    from imagekiln.steps.fetch import fetch_run_models as fetch_model
    from imagekiln.workflows.say import print_text

    print_text(fetch_model(run))


@click.command()
def outcome() -> None:
    """Say how a workflow ended: its exit handler."""
    import os

    from imagekiln.workflows import outcome as outcomes
    from imagekiln.workflows.say import print_text

    ended = outcomes.outcome_from_environment(os.environ)
    print_text(outcomes.describe_outcome(ended))
    if webhook := os.environ.get("IMAGEKILN_WEBHOOK"):
        outcomes.post_outcome(ended, webhook.strip())


CLUSTER_COMMANDS = (render, fetch, outcome)
