"""A plan's model, loaded and ready to draw."""

import os
from pathlib import Path

import diffusers

from imagekiln.steps import conditions, lora_files, rounds
from imagekiln.steps.compiled_code import CompileCache
from imagekiln.steps.denoise import Denoiser
from imagekiln.steps.lora_layers import LoraLayers
from imagekiln.steps.pipeline import load_pipeline
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store, open_store


def load_denoiser(plan: Plan, store: Store | None = None, *, code: bool = True) -> Denoiser:
    """The denoiser of a plan; of the run or round in `store`, with its pictures and the networks that read them.

    With `code`, it takes and leaves the compiled code that lies beside the run. Raises BadInput where the model does
    not load, TryAgain where its device is not there.
    """
    pipe, speed = load_pipeline(plan), plan.job.speed
    loras = LoraLayers(pipe, plan.job.model.loras, plan.loras) if plan.loras else None
    if store is None:
        return Denoiser(pipe, speed, None, loras)
    run, _ = rounds.resolve_run(store.uri)
    kept = _open_compile_cache(plan, run, pipe) if code and speed.compile_cache != "off" else None
    return Denoiser(pipe, speed, kept, loras, conditions.load_adapters(pipe, plan, open_store(run)))


def _open_compile_cache(plan: Plan, run: str, pipe: diffusers.DiffusionPipeline) -> CompileCache:
    path = run if "://" in run else os.path.normpath(Path(run).absolute())
    output = path.rstrip("/").rpartition("/")[0]
    files = lora_files.digest_with_loras(f"{plan.model.digest} {plan.adapters}", plan.loras)
    decides = f"{files} {plan.model.pipeline} {plan.job.model.dtype} {plan.job.speed}"
    return CompileCache(open_store(output or "/"), pipe.device, decides)
