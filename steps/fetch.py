"""Bringing a model's files here before they are needed: one pod fills the cache that a hundred others read."""

from imagekiln.steps import adapter_files, lora_files, pipeline
from imagekiln.steps import plan as plans
from imagekiln.steps.storage import open_store


def fetch(uri: str) -> str:
    """Bring a planned run's model, adapters and LoRAs into this machine's cache; give the model's folder.

    Raises BadInput, Missing and TryAgain as the hub has it.
    """
    plan = plans.load(open_store(uri))
    folder = pipeline.folder(plan.job.model, plan.model.digest)
    for column, each in adapter_files.networks(plan.job.model).items():
        adapter_files.planned(each, plan.adapters[column])
    for name, lora in plan.job.model.loras.items():
        lora_files.planned(name, lora, plan.loras[name].sha256)
    return str(folder)
