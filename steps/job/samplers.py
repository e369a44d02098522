"""The samplers that a row may name, with the diffusers scheduler and the web UIs' name of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Sampler = Literal[
    "default", "ddim", "ddpm", "deis", "dpmpp_2m", "dpmpp_2m_karras", "dpmpp_2m_sde", "dpmpp_sde",
    "euler", "euler_a", "flow_euler", "heun", "lcm", "pndm", "unipc",
]  # fmt: skip
SAMPLERS: tuple[str, ...] = get_args(Sampler)


@dataclass(frozen=True, slots=True)
class SchedulerSpec:
    """The class in diffusers and its settings beyond the model's own; the name in web UIs."""

    class_name: str
    webui_sampler: str
    webui_schedule: str | None = None
    config: Mapping[str, bool | str] = field(default_factory=dict)


# "default" has no entry: it is the scheduler that the model comes with.
SCHEDULERS: Mapping[str, SchedulerSpec] = {
    "ddim": SchedulerSpec("DDIMScheduler", "DDIM"),
    "ddpm": SchedulerSpec("DDPMScheduler", "DDPM"),
    "deis": SchedulerSpec("DEISMultistepScheduler", "DEIS"),
    "dpmpp_2m": SchedulerSpec("DPMSolverMultistepScheduler", "DPM++ 2M"),
    "dpmpp_2m_karras": SchedulerSpec(
        "DPMSolverMultistepScheduler",
        "DPM++ 2M",
        webui_schedule="Karras",
        config={"use_karras_sigmas": True},
    ),
    "dpmpp_2m_sde": SchedulerSpec(
        "DPMSolverMultistepScheduler",
        "DPM++ 2M SDE",
        config={"algorithm_type": "sde-dpmsolver++"},
    ),
    "dpmpp_sde": SchedulerSpec("DPMSolverSinglestepScheduler", "DPM++ SDE"),
    "euler": SchedulerSpec("EulerDiscreteScheduler", "Euler"),
    "euler_a": SchedulerSpec("EulerAncestralDiscreteScheduler", "Euler a"),
    "flow_euler": SchedulerSpec("FlowMatchEulerDiscreteScheduler", "Euler"),
    "heun": SchedulerSpec("HeunDiscreteScheduler", "Heun"),
    "lcm": SchedulerSpec("LCMScheduler", "LCM"),
    "pndm": SchedulerSpec("PNDMScheduler", "PLMS"),
    "unipc": SchedulerSpec("UniPCMultistepScheduler", "UniPC"),
}
