"""Bringing a model's files here before they are needed: one pod fills the cache that a hundred others read."""

from imagekiln.steps import pipeline
from imagekiln.steps import plan as plans
from imagekiln.steps.storage import open_store


def fetch(uri: str) -> str:
    """Bring the files of a planned run's model into this machine's cache; give their folder.

    Raises BadInput, Missing and TryAgain as the hub has it.
    """
    return str(pipeline.folder(plans.load(open_store(uri))))
