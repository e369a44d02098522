"""The calls of a sitting at a GPU, most decisive first; each fits ten minutes.

Their budgets leave half a minute for what comes before the command, such as an installation.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """Sections that are measured with one model, in its usual steps if `steps` is None."""

    model: str
    sections: tuple[str, ...]
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A command's worth: what it answers, its stages, and the seconds that it may take."""

    answers: str
    seconds: float
    stages: tuple[Stage, ...]


CALLS = {
    "A": Call(
        "What do the networks reach of the device, compiled by region and whole?",
        560,
        (Stage("sdxl", ("machine", "denoiser", "decoder")), Stage("flux", ("denoiser",))),
    ),
    "B": Call(
        "Is a job as fast as bare loops?",
        560,
        (Stage("sdxl", ("rates",)),),
    ),
    "C": Call(
        "How long does a pod take to its first step, and does it survive what happens to GPUs?",
        550,
        (Stage("sdxl", ("cold",)), Stage("sd15", ("faults",))),
    ),
    "D": Call(
        "What do deterministic cuDNN, copies that wait and other choices cost a few-step model?",
        560,
        (Stage("sdxl", ("switches",), steps=4),),
    ),
}
