"""How long a job takes: on one GPU, and on as many as it may have.

Exactly by its plan; before there is one, by the number of rows of its prompts.
"""

from dataclasses import dataclass, replace

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.tuning_file import TuningEntry, read_tuning_file
from imagekiln.steps.models.passes import work_by_defaults
from imagekiln.steps.models.performance import FORWARD_COSTS, TimeFigure, time_figure
from imagekiln.steps.plan.batch_sizes import tuning_source
from imagekiln.steps.plan.row_count import count_rows
from imagekiln.steps.runtime.figures import format_device_hours, format_duration, pluralize

HOW_TO_MEASURE = "run `imagekiln tune JOB` on its GPU or CPU, or set shard.seconds_per_image"
# Where the runs before are not looked for.
HOW_TO_KNOW = f"{HOW_TO_MEASURE}; where the job has run before, `imagekiln estimate JOB` knows"
HOURS_PER_DAY = 24
SECONDS_PER_HOUR = 3600
# The columns by which a row takes more or less time than the job's defaults.
WORK_COLUMNS = ("width", "height", "steps", "images", "strength")


@dataclass(frozen=True, slots=True)
class RunTime:
    """How long generating takes, without starting pods and loading the model.

    `source` says where the time of an image is from, and `device` names the GPU that it was
    measured on, if that is known. Where an earlier run was measured, loading is included.
    `shards` is the most GPUs that can work at once; None before planning. `has_default_work` is
    False where rows, earlier runs or passes decide how much there is to generate, and only planning
    finds out. `images` are those of the rows that were counted without planning. `is_firm` is False
    where the time rests on too little for a budget to refuse the job by it.
    """

    gpu_hours: float
    source: str
    is_measured: bool = True
    shards: int | None = None
    has_default_work: bool = True
    device: str | None = None
    images: int | None = None
    is_firm: bool = True

    def usable_gpus(self, gpus: int) -> int:
        """How many of so many GPUs have work."""
        most = gpus if self.shards is None else min(gpus, self.shards)
        return max(1, most)

    def hours_on(self, gpus: int) -> float:
        """The hours by the clock on so many GPUs."""
        return self.gpu_hours / self.usable_gpus(gpus)

    def describe(self, gpus: int) -> str:
        """The time on so many GPUs, in a sentence, with the source of the figure."""
        hours = format_hours(self.hours_on(gpus), self.usable_gpus(gpus), self._device_noun)
        return self._describe_hours(hours)

    def describe_both(self, cluster_gpus: int) -> str:
        """The time on one GPU and on those of a cluster, with the source of the figure."""
        gpus = self.usable_gpus(cluster_gpus)
        hours = self.hours_on(gpus)
        return self._describe_hours(format_both(self.gpu_hours, hours, gpus, self._device_noun))

    @property
    def _device_noun(self) -> str:
        return device_noun(self.device)

    def _describe_hours(self, hours: str) -> str:
        total = format_device_hours(self.gpu_hours, self._device_noun)
        return f"About {hours} ({total}, {self.source})."


def device_noun(device: str | None) -> str:
    """What a device of this name is called in figures: a GPU, unless it is known to be none."""
    return "device" if device == "cpu" else "GPU"


def format_hours(hours: float, gpus: int, noun: str = "GPU") -> str:
    """The time on so many GPUs, such as 24 min on 16 GPUs at once; days where it takes several."""
    return f"{_format_time(hours)} on {pluralize(gpus, noun, f'{noun}s at once')}"


def format_both(gpu_hours: float, hours: float, cluster_gpus: int, noun: str = "GPU") -> str:
    """The time on one GPU, and that on so many of a cluster where it has work for several."""
    alone = format_hours(gpu_hours, 1, noun)
    if cluster_gpus == 1:
        return alone
    return (
        f"{alone}, about {_format_time(hours)} on the {cluster_gpus} that a cluster gives at once"
    )


def _format_time(hours: float) -> str:
    days = hours / HOURS_PER_DAY
    return format_duration(hours * SECONDS_PER_HOUR) if days < 3 else f"{days:,.1f} days"


def run_time(figure: TimeFigure, work: float, shards: int | None = None) -> RunTime:
    """The time of so much work, in pixels times steps."""
    gpu_hours = figure.seconds_per_work * work / SECONDS_PER_HOUR
    return RunTime(gpu_hours, figure.source, figure.is_measured, shards, device=figure.device)


def estimate_by_rows(job: Job) -> RunTime | None:
    """The time of a job as if all its rows had its defaults; None where no figure is known.

    Nothing is read where no figure is known, else the tuning file and what counts the prompts.
    Raises Missing, BadInput, TryAgain.
    """
    size, figure = default_figure(job)
    if figure is None:
        return None
    counted = count_rows(job)
    images = counted.rows * job.defaults.images_per_prompt * job.candidates
    by_rows = run_time(figure, images * work_by_defaults(job, size))
    names = job.columns.model_dump()
    has_own_work = any(names[column] in counted.columns for column in WORK_COLUMNS)
    has_default_work = not (has_own_work or job.skip_existing or job.alters_images)
    return replace(by_rows, has_default_work=has_default_work, images=images)


def count_images(job: Job) -> int:
    """The images of the job's rows, as if all had its defaults.

    Raises Missing, BadInput, TryAgain.
    """
    return count_rows(job).rows * job.defaults.images_per_prompt * job.candidates


def default_figure(job: Job) -> tuple[tuple[int, int], TimeFigure | None]:
    """The size of an image of the job's defaults, and its time, without looking at the model."""
    entry = None if job.shard.seconds_per_image is not None else _fastest_entry(job)
    size = _default_size(job, entry)
    tuned = None
    if entry is not None:
        work = entry.width * entry.height * entry.steps
        tuned = TimeFigure(entry.seconds_per_image / work, tuning_source(entry))
    return size, time_figure(job, size, tuned)


def _default_size(job: Job, entry: TuningEntry | None) -> tuple[int, int]:
    """The size that the job sets, or else that of the entry, or of the model in the table."""
    side = 1  # for a time that the job itself gives for an image of any size
    if cost := FORWARD_COSTS.get(job.model.id):
        side = round((cost.megapixels * 1e6) ** 0.5)
    width, height = (side, side) if entry is None else (entry.width, entry.height)
    return job.defaults.width or width, job.defaults.height or height


def _fastest_entry(job: Job) -> TuningEntry | None:
    """Of the tuning file's entries for the job's model, the one with the least time for a pixel."""
    if job.batch.tuning is None:
        return None
    entries = [
        entry
        for entry in read_tuning_file(job.batch.tuning).entries
        if entry.model == job.model.id
        and entry.dtype == job.model.dtype
        and entry.speed == job.speed
    ]
    return min(entries, key=_seconds_per_work, default=None)


def _seconds_per_work(entry: TuningEntry) -> float:
    return entry.seconds_per_image / (entry.width * entry.height * entry.steps)
