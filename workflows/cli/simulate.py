"""The command that plays a job through on many GPUs, and what it prints."""

import math
from typing import TYPE_CHECKING

import click
import cloup

from imagekiln.workflows.cli.options import date_options, examples, format_option, job_options

if TYPE_CHECKING:
    from imagekiln.workflows.simulation.scenario import Limit, Simulation

SECONDS_PER_MINUTE = 60
LABEL_WIDTH = 13


@cloup.command(
    epilog=examples(
        "imagekiln simulate job.yaml --images 100_000_000 --gpus 256 --losses 0.05",
        "imagekiln simulate job.yaml --images 1_000_000 --gpus 16 --price 2.50",
    )
)
@job_options
@date_options
@cloup.option(
    "--images",
    type=click.IntRange(1),
    help="The images of the run, each with the job's defaults. Default: those of the rows of its "
    "Parquet prompts.",
)
@cloup.option(
    "--gpus", type=click.IntRange(1), help="GPUs. Default: those of cluster.parallelism pods."
)
@cloup.option(
    "--losses",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="The share of the nodes that are lost in an hour, such as 0.05 of spot nodes.",
)
@cloup.option(
    "--price",
    type=click.FloatRange(min=0),
    help="The price of a GPU-hour, in place of the job's own.",
)
@cloup.option(
    "--node-minutes",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="Until a new node takes a pod, its image pulled. 0: nodes are always there.",
)
@cloup.option(
    "--idle-minutes",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="After which an idle node is removed.",
)
@cloup.option(
    "--load-seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="From the start of a pod to its first batch: `start` in a shard's stats.",
)
@cloup.option("--seed", type=int, default=0, show_default=True, help="Decides when nodes are lost.")
@format_option
def simulate(
    job: str,
    settings: tuple[str, ...],
    date: str,
    timezone: str,
    images: int | None,
    gpus: int | None,
    losses: float,
    price: float | None,
    node_minutes: float,
    idle_minutes: float,
    load_seconds: float,
    seed: int,
    output_format: str,
) -> None:
    """Play a job through on many GPUs, without a cluster.

    Prints when it ends, what it costs, what lost nodes cost it, and which limit it meets first.
    """
    from imagekiln.steps.job.dates import fill_date, require_date
    from imagekiln.steps.job.reader import read_job
    from imagekiln.workflows.cli.text import print_result
    from imagekiln.workflows.profiles.loader import load_profile
    from imagekiln.workflows.simulation.run import Fleet
    from imagekiln.workflows.simulation.scenario import (
        Conditions,
        count_job_images,
        seconds_per_image,
    )
    from imagekiln.workflows.simulation.scenario import simulate as simulate_job

    simulated_job = fill_date(read_job(job, settings), date, timezone)
    if images is None:
        require_date(simulated_job)
    profile = load_profile(simulated_job.cluster.profile)
    fleet = Fleet(
        gpus=gpus or simulated_job.cluster.parallelism * profile.gpu.count,
        seconds_per_image=seconds_per_image(simulated_job),
        load_seconds=load_seconds,
        node_seconds=node_minutes * SECONDS_PER_MINUTE,
        idle_seconds=idle_minutes * SECONDS_PER_MINUTE,
    )
    paid = simulated_job.price_per_hour if price is None else price
    conditions = Conditions(fleet, losses, paid, seed)
    images = images or count_job_images(simulated_job)
    result = simulate_job(simulated_job, profile, images, conditions)
    print_result(result, output_format, format_simulation)


def format_simulation(result: "Simulation") -> str:
    """A simulated run as a table, its limits last."""
    from imagekiln.steps.runtime.figures import (
        format_bytes,
        format_duration,
        format_money,
        format_number,
        format_percent,
        pluralize,
    )
    from imagekiln.workflows.cli.text import format_table

    run = result.run
    time = run.gpu_time
    total = time.total or 1.0
    shares = {
        "drawing": time.drawing,
        "loading": time.loading,
        "starting nodes": time.starting,
        "idle": time.idle,
        "repeated": time.repeated,
    }
    use = ", ".join(f"{format_percent(part / total)} {name}" for name, part in shares.items())
    missing = f", {run.missing:,} missing" if run.missing else ""
    lines = {
        "images": f"{result.images:,} in {pluralize(result.shards, 'shard')}{missing}",
        "time": f"{format_duration(result.seconds)} on {pluralize(result.gpus, 'GPU')}, "
        f"of it {format_duration(result.planning_seconds)} planning and "
        f"{format_duration(result.aggregating_seconds)} aggregating",
        "GPU-hours": f"{format_number(total / 3600)}: {use}",
    }
    if result.cost is not None:
        lines["cost"] = format_money(result.cost)
    lines |= {
        "lost nodes": f"{run.lost_nodes:,}; a pod had {run.most_attempts} attempts at most",
        "workflows": f"{pluralize(result.workflows, 'workflow')}, {pluralize(run.pods, 'pod')}; "
        f"the largest object {format_bytes(result.workflow_bytes)}",
        "store": f"{pluralize(result.objects, 'object')}; plan.json "
        f"{format_bytes(result.plan_bytes)}",
    }
    table = format_table(lines, width=LABEL_WIDTH)
    limits = map(_format_limit, result.limits)
    return "\n".join([table, "Limits, nearest first:", *limits])


def _format_limit(limit: "Limit") -> str:
    """A limit, how much of it is used, when it is reached, and what to do if it is exceeded."""
    from imagekiln.steps.runtime.figures import format_number

    unit = f" {limit.unit}" if limit.unit else ""
    line = f"  {limit.name}: {format_number(limit.used)} of {format_number(limit.maximum)}{unit}"
    if limit.grows_to is not None:
        digits = 2 - math.floor(math.log10(limit.grows_to))
        line += f", reached with {round(limit.grows_to, digits):,.0f} {limit.grows_with}"
    if limit.share > 1:
        line += f". EXCEEDED: {limit.remedy}"
    return f"{line}."
