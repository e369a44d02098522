"""Bringing a model's files here before they are needed: one pod fills the cache that a hundred others read."""

from imagekiln.steps import adapter_files, lora_files, pipeline
from imagekiln.steps import plan as plans
from imagekiln.steps.storage import open_store


def fetch_run_models(uri: str) -> str:
    """Bring a planned run's model, adapters and LoRAs into this machine's cache; give the model's folder.

    Raises BadInput, Missing and TryAgain as the hub has it.
    """
    plan = plans.load_plan(open_store(uri))
    folder = pipeline.fetch_model(plan.job.model, plan.model.digest)
    for column, each in adapter_files.adapters_by_column(plan.job.model).items():
        adapter_files.fetch_planned_adapter(each, plan.adapters[column])
    for name, lora in plan.job.model.loras.items():
        lora_files.fetch_planned_lora(name, lora, plan.loras[name].sha256)
    return str(folder)
