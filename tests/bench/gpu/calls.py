"""The two calls of a quarter of an hour at a GPU, most decisive first.

The first ends within nine minutes, the second within four, so that both fit fifteen with the start
of the machine.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """Sections that are measured with one model, and what differs from its usual work.

    `seconds` bounds the stage: a section that would take longer is omitted, so that the next stage
    has its time.
    """

    model: str
    sections: tuple[str, ...]
    seconds: float
    batch: int | None = None
    steps: int | None = None
    batches: int | None = None
    ways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A command's worth: what it answers, its stages, and the seconds that it may take."""

    answers: str
    seconds: float
    stages: tuple[Stage, ...]


UNET_WAYS = ("regional-det", "regional", "whole-det")
FLUX_WAYS = ("regional-det", "fp8-regional-det")
CALLS = {
    "1": Call(
        "What do networks reach of the device, is a job as fast as a bare loop, how long is a cold "
        "start?",
        510,
        (
            Stage("sdxl", ("machine", "denoiser"), seconds=190, ways=UNET_WAYS),
            Stage("flux", ("denoiser",), seconds=100, batch=1, ways=FLUX_WAYS),
            Stage("sdxl", ("decoder",), seconds=40),
            Stage("sdxl", ("rates",), seconds=170, steps=8, batches=10),
            Stage("sdxl", ("cold",), seconds=135),
        ),
    ),
    "2": Call(
        "What do samplers that wait for the device cost?",
        90,
        (Stage("sd15", ("samplers",), seconds=90),),
    ),
    "faults": Call(
        "Does a job survive memory that runs out, a lost device and SIGTERM?",
        550,
        (Stage("sd15", ("faults",), seconds=550),),
    ),
}
