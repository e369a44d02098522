"""The samplers a row may name, and the diffusers scheduler behind each."""

from typing import Literal, get_args

Sampler = Literal[
    "default", "ddim", "ddpm", "deis", "dpmpp_2m", "dpmpp_2m_karras", "dpmpp_2m_sde", "dpmpp_sde", "euler",
    "euler_a", "flow_euler", "heun", "lcm", "pndm", "unipc",
]  # fmt: skip
SAMPLERS: tuple[str, ...] = get_args(Sampler)
# "default" is the scheduler that the model came with, so it stands in no table.
SCHEDULERS: dict[str, tuple[str, dict[str, bool | str]]] = {
    "ddim": ("DDIMScheduler", {}),
    "ddpm": ("DDPMScheduler", {}),
    "deis": ("DEISMultistepScheduler", {}),
    "dpmpp_2m": ("DPMSolverMultistepScheduler", {}),
    "dpmpp_2m_karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "dpmpp_2m_sde": ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "dpmpp_sde": ("DPMSolverSinglestepScheduler", {}),
    "euler": ("EulerDiscreteScheduler", {}),
    "euler_a": ("EulerAncestralDiscreteScheduler", {}),
    "flow_euler": ("FlowMatchEulerDiscreteScheduler", {}),
    "heun": ("HeunDiscreteScheduler", {}),
    "lcm": ("LCMScheduler", {}),
    "pndm": ("PNDMScheduler", {}),
    "unipc": ("UniPCMultistepScheduler", {}),
}
# Ours, and what web UIs call sampler and schedule. "default" is not here: which it is, the model alone knows.
WEBUI_SAMPLERS = {
    "ddim": "DDIM",
    "ddpm": "DDPM",
    "deis": "DEIS",
    "dpmpp_2m": "DPM++ 2M",
    "dpmpp_2m_karras": "DPM++ 2M",
    "dpmpp_2m_sde": "DPM++ 2M SDE",
    "dpmpp_sde": "DPM++ SDE",
    "euler": "Euler",
    "euler_a": "Euler a",
    "flow_euler": "Euler",
    "heun": "Heun",
    "lcm": "LCM",
    "pndm": "PLMS",
    "unipc": "UniPC",
}
WEBUI_SCHEDULES = {"dpmpp_2m_karras": "Karras"}
