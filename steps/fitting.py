"""Whether a job's model can do what the job asks of it, as far as the class of its pipeline tells."""

from imagekiln.steps import adapter_files, lora_files, shortcuts
from imagekiln.steps.job import Job


def require_compatibility(job: Job, pipeline: str) -> None:
    """Raise BadInput where a shortcut, a network or a LoRA of the job is none for this pipeline; Missing, TryAgain."""
    shortcuts.require_shortcut_support(job, pipeline)
    adapter_files.require_adapter_support(job.model, pipeline)
    lora_files.require_lora_support(job.model, pipeline)
