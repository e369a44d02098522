"""How long a run takes: on one GPU, and on as many as it may have."""

from dataclasses import dataclass

from imagekiln.steps.runtime.figures import format_device_hours, format_duration, pluralize

HOW_TO_MEASURE = "run `imagekiln tune JOB` on its GPU or CPU, or set shard.seconds_per_image"
HOURS_PER_DAY = 24
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class RunTime:
    """How long generating takes, without starting pods and loading the model.

    `source` says where the time of an image is from, and `device` names the GPU that it was
    measured on, if that is known. If an earlier run was measured, loading is included. `shards` is
    the most GPUs that can work at once. `is_firm` is False if the time rests on too little for a
    budget to refuse the job by it.
    """

    gpu_hours: float
    source: str
    shards: int
    is_measured: bool = True
    device: str | None = None
    is_firm: bool = True

    def usable_gpus(self, gpus: int) -> int:
        """How many of so many GPUs have work."""
        return max(1, min(gpus, self.shards))

    def hours_on(self, gpus: int) -> float:
        """The hours by the clock on so many GPUs."""
        return self.gpu_hours / self.usable_gpus(gpus)

    def describe(self, gpus: int) -> str:
        """The time on so many GPUs, in a sentence, with the source of the figure."""
        noun = device_noun(self.device)
        return self._describe_hours(format_hours(self.hours_on(gpus), self.usable_gpus(gpus), noun))

    def describe_both(self, cluster_gpus: int) -> str:
        """The time on one GPU and on those of a cluster, with the source of the figure."""
        gpus = self.usable_gpus(cluster_gpus)
        hours = self.hours_on(gpus)
        noun = device_noun(self.device)
        return self._describe_hours(format_both(self.gpu_hours, hours, gpus, noun))

    def _describe_hours(self, hours: str) -> str:
        total = format_device_hours(self.gpu_hours, device_noun(self.device))
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
