"""What a pipeline is asked to do after each of its steps, by the name that it has for it."""

from collections.abc import Callable
from functools import partial

import diffusers

from imagekiln.steps.conditioning import Conditioning, Inputs
from imagekiln.steps.cutoff import CutOff, Tensors


def asking(told: Conditioning, check: Callable[[], None], cut: CutOff | None) -> Inputs:
    """Arguments by which `check` is called after each step, and guidance ends where it is to be `cut`."""
    if told.accepts("callback_on_step_end"):
        shown = {"callback_on_step_end_tensor_inputs": list(cut.halved)} if cut else {}
        return {"callback_on_step_end": partial(_after_step, check, cut), **shown}
    if told.accepts("callback"):  # PixArt's
        return {"callback": lambda _step, _time, _latents: check()}
    return {}


def _after_step(
    check: Callable[[], None],
    cut: CutOff | None,
    pipe: diffusers.DiffusionPipeline,
    step: int,
    _time: object,
    tensors: Tensors,
) -> Tensors:
    check()
    return cut.after_step(pipe, step, tensors) if cut else tensors
