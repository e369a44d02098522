"""Bringing a model's files here before they are needed: one pod fills the cache that a hundred others read."""

from imagekiln.steps import adapter_files, pipeline
from imagekiln.steps import plan as plans
from imagekiln.steps.storage import open_store


def fetch(uri: str) -> str:
    """Bring a planned run's model and its adapters into this machine's cache; give the model's folder.

    Raises BadInput, Missing and TryAgain as the hub has it.
    """
    plan = plans.load(open_store(uri))
    wanted = {"control_image": plan.job.model.controlnet, "reference_image": plan.job.model.ip_adapter}
    for column, each in wanted.items():
        if each is not None:
            adapter_files.planned(each, plan.adapters[column])
    return str(pipeline.folder(plan))
