"""Jobs and runs on this machine: functions that `imagekiln` re-exports.

Each function reads the job, and calls the same function as the command line.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from imagekiln.steps.errors import explain_failures
from imagekiln.steps.job.job import Job

if TYPE_CHECKING:
    from imagekiln import results
    from imagekiln.steps.runtime.progress import Progress

PathOrUri = str | PathLike[str]
JobSource = Job | PathOrUri


@explain_failures
def read_job(
    source: PathOrUri, settings: Sequence[str] = (), *, date: str = "", timezone: str = "UTC"
) -> Job:
    """Read and validate a job file, with `key=value` settings that override its own.

    `date`, such as "2026-11-21", replaces `{date}` in the job's prompts, in `timezone`, and names
    the run.

    Raises BadInput with the place of every mistake, Missing if there is no such file.

    >>> import imagekiln
    >>> job = imagekiln.read_job("bundled:demo.yaml", ["output=images", "defaults.steps=2"])
    >>> job.name, job.defaults.steps
    ('demo', 2)
    """
    from imagekiln.steps.job.dates import fill_date
    from imagekiln.steps.job.reader import read_job as read_undated_job

    return fill_date(read_undated_job(fspath(source), settings), date, timezone)


@explain_failures
def job(**settings: object) -> Job:
    """Build a job from plain values, as in a job file.

    Raises BadInput with a message for every mistake, unlike `Job`, which raises pydantic's error.

    >>> import imagekiln
    >>> shapes = {"id": "bundled:shapes", "dtype": "float32"}
    >>> job = imagekiln.job(name="a", prompts="a.parquet", output="images", model=shapes)
    >>> job.defaults.images_per_prompt
    1
    """
    from imagekiln.steps.job.reader import validate_job

    return validate_job(settings)


def load_job(job: JobSource) -> Job:
    """Return the job itself, or read it from a file."""
    return job if isinstance(job, Job) else read_job(job)


def _dated_job(job: JobSource, date: str, timezone: str) -> Job:
    from imagekiln.steps.job.dates import fill_date, require_date

    return require_date(fill_date(load_job(job), date, timezone))


@contextmanager
def show_progress(show: bool | None, noun: str = "images") -> Iterator["Progress"]:
    """Show progress if `show` is true; by default, show a bar on an interactive terminal."""
    from imagekiln.steps.runtime.progress import NoProgress, is_watched, open_progress

    if show is None:
        show = is_watched()
    if not show:
        yield NoProgress()
        return
    with open_progress(noun) as progress:
        yield progress


@explain_failures
def estimate(
    job: JobSource,
    price: float | dict[str, float] | None = None,
    *,
    date: str = "",
    timezone: str = "UTC",
) -> "results.Estimate":
    """Estimate a job's images, size, GPU-hours and cost without writing anything.

    `price` is the price of a GPU-hour, or a table by GPU, and replaces the job's own. `date` is as
    for `run`. Raises the errors of `plan`, but reports an exceeded budget as `over_budget`.

    >>> import imagekiln
    >>> imagekiln.estimate("bundled:demo.yaml").images
    135
    """
    from imagekiln.steps.plan.estimate import estimate as estimate_job

    return estimate_job(_dated_job(job, date, timezone), price)


@explain_failures
def rewrite(
    job: JobSource, *, date: str = "", timezone: str = "UTC", progress: bool | None = None
) -> "results.RewriteResult":
    """Rewrite those prompts of a job that its language model has not rewritten yet.

    `preview`, `plan`, `run` and workflows do this themselves. Called again, it resumes. `date` is
    as for `run`. Raises BadInput if job, prompts or model must be corrected, TryAgain if the hub,
    storage or the device failed.
    """
    from imagekiln.steps.rewrite.step import rewrite as rewrite_job
    from imagekiln.steps.runtime.machine import silence_libraries

    silence_libraries()
    with show_progress(progress, "prompts") as reporter:
        return rewrite_job(_dated_job(job, date, timezone), reporter)


@explain_failures
def preview(
    job: JobSource,
    images: int = 24,
    *,
    date: str = "",
    timezone: str = "UTC",
    progress: bool | None = None,
) -> "results.Preview":
    """Generate a sample of a job's images, and a page that shows them.

    The sample covers every shape, sampler and LoRA, and short and long prompts, if it is large
    enough. Its images are part of the run: a later `run` makes the others. `date` is as for `run`.

    Raises the errors of `run`: Incomplete if the sample does not meet the job's limits and gates,
    BadInput if the run was planned without a sample.
    """
    from imagekiln.steps.local import preview as preview_job
    from imagekiln.steps.runtime.machine import silence_libraries

    silence_libraries()
    with show_progress(progress) as reporter:
        return preview_job(_dated_job(job, date, timezone), images, reporter)


@explain_failures
def run(
    job: JobSource,
    *,
    date: str = "",
    timezone: str = "UTC",
    gpus: int | None = None,
    progress: bool | None = None,
) -> "results.RunResult":
    """Run a whole job on this machine: plan, generate every shard, aggregate.

    Called again, it resumes and keeps everything that was committed. `gpus` is the number of GPUs,
    by default all visible ones, with a process for each. If the job's device is the CPU, `gpus` is
    the number of processes. `date`, such as "2026-11-21", replaces `{date}` in the job's prompts,
    in `timezone`, and names the run.

    A terminal or a notebook shows a bar. Elsewhere, `progress=True` prints a JSON line every few
    seconds. `progress=False` shows nothing.

    Raises BadInput if job, prompts or model must be corrected, Incomplete if more images failed
    than the job accepts, TryAgain if storage or the device failed.
    """
    from imagekiln.steps.local import run as run_job
    from imagekiln.steps.runtime.machine import silence_libraries

    silence_libraries()
    with show_progress(progress) as reporter:
        return run_job(_dated_job(job, date, timezone), reporter, gpus=gpus)


@explain_failures
def plan(job: JobSource, *, date: str = "", timezone: str = "UTC") -> "results.PlanResult":
    """Validate a job's prompts and write the plan of its run: every image, its seed and its shard.

    If the run already has a plan with equal settings, that plan is returned. `date` is as for
    `run`. Raises BadInput if job, prompts or model must be corrected, TryAgain if storage failed.

    >>> import imagekiln
    >>> result = imagekiln.plan(imagekiln.read_job("bundled:demo.yaml", ["output=images"]))
    >>> result.plan.counts.images
    135
    """
    from imagekiln.steps.plan.step import make_plan
    from imagekiln.steps.rewrite.step import prompt_rewriter
    from imagekiln.steps.runtime.machine import silence_libraries

    silence_libraries()
    return make_plan(_dated_job(job, date, timezone), rewriter=prompt_rewriter())


@explain_failures
def generate(
    run: PathOrUri,
    shard: int,
    *,
    progress: bool | None = None,
) -> "results.ShardStats | None":
    """Generate the missing images of one shard of a planned run; return None if none was missing.

    Shards are numbered from 0. Raises BadInput if run, shard or model do not match the plan,
    TryAgain if storage or the device failed.
    """
    from imagekiln.steps.generate.start import generate as generate_shard

    with show_progress(progress) as reporter:
        return generate_shard(fspath(run), shard, reporter)


@explain_failures
def aggregate(
    run: PathOrUri,
    *,
    failed_share: float | None = None,
    accept: Sequence[str] = (),
    price: float | dict[str, float] | None = None,
) -> "results.Summary":
    """Account for every planned image: counts, verdict, report and dataset card.

    `failed_share` and `accept`, names of quality gates, replace the job's own limits. `price` is
    per device-hour, or a table by device. Raises Incomplete if images are missing, or more are not
    ok than accepted.
    """
    from imagekiln.steps.aggregate.step import aggregate as aggregate_run

    return aggregate_run(fspath(run), failed_share, accept, price)


@explain_failures
def runs(output: PathOrUri) -> "list[results.RunOverview]":
    """List the runs in a job's output, and how each ended.

    Raises Missing if there is no such folder, BadInput if it is not the output of any job.
    """
    from imagekiln.steps.maintain.run_list import list_runs

    return list_runs(fspath(output))


@explain_failures
def verify(run: PathOrUri) -> "results.VerifyResult":
    """Read a whole run back and check every image against the plan, by its hash.

    The manifest and the counts of images are compared with the parts. Report, card, the lists of
    rejected and duplicate rows, statistics, times, costs and thumbnails are not checked.

    Raises Incomplete with a list if anything is missing, damaged or different.
    """
    from imagekiln.steps.maintain.verify import verify as verify_run

    return verify_run(fspath(run))


@explain_failures
def retry(
    run: PathOrUri, *, progress: bool | None = None, include_permanent: bool = False
) -> "results.RetryResult":
    """Generate the failed, blank and missing images of a run again.

    Images with permanent failures are skipped, unless `include_permanent`. Raises Incomplete if too
    many fail again, TryAgain if storage or the device failed.
    """
    from imagekiln.steps.maintain.retry import retry as retry_run

    with show_progress(progress) as reporter:
        return retry_run(fspath(run), reporter, include_permanent=include_permanent)


@explain_failures
def reproduce(
    run: PathOrUri, image_id: str, to: PathOrUri | None = None
) -> "results.ReproduceResult":
    """Generate one image of a run again, and compare it with the stored image.

    It is written to the file `to`, by default IMAGE_ID.png in the current folder. Raises BadInput
    if run or image do not exist.
    """
    from imagekiln.steps.maintain.reproduce import reproduce as reproduce_image

    return reproduce_image(fspath(run), image_id, None if to is None else Path(to))


@explain_failures
def diff(first: PathOrUri, second: PathOrUri, to: PathOrUri) -> "results.Diff":
    """Compare two runs of the same prompts, and write a page of image pairs into the folder `to`.

    Raises BadInput if a run does not exist or is not aggregated.
    """
    from imagekiln.steps.maintain.diff import diff as diff_runs

    return diff_runs(fspath(first), fspath(second), fspath(to))


@explain_failures
def gc(output: PathOrUri, *, older_than: float = 7.0, remove: bool = False) -> "results.GcResult":
    """List, or remove, unfinished runs in a job's output.

    Only runs to which nothing was written for `older_than` days.
    """
    from imagekiln.steps.maintain.gc import gc as collect_garbage

    return collect_garbage(fspath(output), older_than, remove=remove)


@explain_failures
def tune(
    job: JobSource,
    file: PathOrUri,
    sizes: Sequence[tuple[int, int]] = (),
    *,
    again: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> "results.TuningResult":
    """Find the fastest batch size for the job's model on this device, and add it to a tuning file.

    `sizes` are widths and heights in pixels, by default the job's own. Sizes that are in the file
    are measured only with `again`. `report` is called with a line for each measurement.

    Raises BadInput if job, model, size or file must be corrected, TryAgain if the device is
    unavailable.
    """
    from imagekiln.steps.generate.start import require_libraries

    tuned_job = load_job(job)
    require_libraries(tuned_job)
    from imagekiln.steps.generate.tune import tune as tune_job

    return tune_job(tuned_job, fspath(file), sizes, again=again, report=report)
