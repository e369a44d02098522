"""A plan's model, loaded and ready to draw."""

import os
from pathlib import Path

import diffusers

from imagekiln.steps import refine
from imagekiln.steps.compiled_code import CompiledCode
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.pipeline import load
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import open_store


def opened(plan: Plan, uri: str | None = None) -> Denoiser:
    """The denoiser of a plan; of the run or round at `uri`, with the compiled code that lies beside the run.

    Raises BadInput where the model does not load, TryAgain where its device is not there.
    """
    pipe = load(plan)
    speed = plan.job.speed
    code = None if uri is None or speed.compile_cache == "off" else _code(plan, uri, pipe)
    return Denoiser(pipe, speed, code, refine.load(plan, pipe))


def _code(plan: Plan, uri: str, pipe: diffusers.DiffusionPipeline) -> CompiledCode:
    folder = uri if "://" in uri else os.path.normpath(Path(uri).absolute())
    for _ in range(2 if plan.round else 1):  # a round lies in its run, and that in the output
        folder = folder.rstrip("/").rpartition("/")[0]
    decides = f"{plan.model.digests} {plan.model.pipeline} {plan.job.model.dtype} {plan.job.speed}"
    return CompiledCode(open_store(folder or "/"), pipe.device, decides)
