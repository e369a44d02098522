"""A plan's model, loaded and ready to draw."""

import os
from pathlib import Path

import diffusers

from imagekiln.steps import conditions, lora_files, rounds
from imagekiln.steps.compiled_code import CompiledCode
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.lora_layers import LoraLayers
from imagekiln.steps.pipeline import load
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store, open_store


def opened(plan: Plan, store: Store | None = None, *, code: bool = True) -> Denoiser:
    """The denoiser of a plan; of the run or round in `store`, with its pictures and the networks that read them.

    With `code`, it takes and leaves the compiled code that lies beside the run. Raises BadInput where the model does
    not load, TryAgain where its device is not there.
    """
    pipe, speed = load(plan), plan.job.speed
    loras = LoraLayers(pipe, plan.job.model.loras, plan.loras) if plan.loras else None
    if store is None:
        return Denoiser(pipe, speed, None, loras)
    run, _ = rounds.home(store.uri)
    kept = _code(plan, run, pipe) if code and speed.compile_cache != "off" else None
    return Denoiser(pipe, speed, kept, loras, conditions.load(pipe, plan, open_store(run)))


def _code(plan: Plan, run: str, pipe: diffusers.DiffusionPipeline) -> CompiledCode:
    path = run if "://" in run else os.path.normpath(Path(run).absolute())
    output = path.rstrip("/").rpartition("/")[0]
    files = lora_files.joined(f"{plan.model.digest} {plan.adapters}", plan.loras)
    decides = f"{files} {plan.model.pipeline} {plan.job.model.dtype} {plan.job.speed}"
    return CompiledCode(open_store(output or "/"), pipe.device, decides)
