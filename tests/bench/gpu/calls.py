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
        "Which kernels are slow, and what do text threads, the decoder and Flux cost?",
        540,
        (
            Stage("sdxl", ("machine", "convolutions", "threads", "decoder", "slots")),
            Stage("flux", ("denoiser",)),
        ),
    ),
    "B": Call(
        "Is SDXL's UNet as fast compiled by region, and what does deterministic code cost?",
        550,
        (Stage("sdxl", ("machine", "denoiser")),),
    ),
    "C": Call(
        "Is a job as fast as bare loops, and are its images the same in every place?",
        560,
        (Stage("sdxl", ("rates",)), Stage("sd15", ("job-slots",))),
    ),
    "D": Call(
        "How long does a pod take to its first step, and does it survive what happens to GPUs?",
        550,
        (Stage("sdxl", ("cold",)), Stage("sd15", ("faults",))),
    ),
    "E": Call(
        "Does memory stay flat over 5,000 prompts?",
        550,
        (Stage("sdxl", ("memory",)),),
    ),
    "F": Call(
        "What do deterministic cuDNN, copies that wait and other choices cost a few-step model?",
        560,
        (Stage("sdxl", ("switches",), steps=4),),
    ),
    "G": Call(
        "Does tuning pick the best batch size?",
        560,
        (Stage("sdxl", ("tune",)),),
    ),
}
