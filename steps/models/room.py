"""Whether a GPU has room for the weights of a job's models."""

from collections.abc import Mapping

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.facts import ModelFacts
from imagekiln.steps.models.passes import PASSES_PREFIX, PassFacts

GIB = 2**30


def sum_weights(facts: ModelFacts, passes: Mapping[str, PassFacts]) -> int | None:
    """The bytes of the weights of a job's models, those of its passes too; None if not known."""
    models = [facts, *(each.model for each in passes.values() if each.model is not None)]
    known = [model.weights_bytes for model in models if model.weights_bytes is not None]
    return sum(known) if known else None


def in_bytes(gib: float | None) -> float | None:
    """A number of GiB in bytes."""
    return None if gib is None else gib * GIB


def require_room(job: Job, weights_bytes: int | None, memory: float | None, gpu: str) -> None:
    """Raise BadInput where weights take more than the whole memory of a GPU, both in bytes.

    None is what is not known. `gpu` is how the sentence names the GPU.
    """
    if weights_bytes is None or memory is None or weights_bytes <= memory:
        return
    model = job.model
    beside = f", with those of {', '.join(f'{PASSES_PREFIX}{name}' for name in job.passes)},"
    smaller = "set model.dtype: bfloat16, which halves them, or choose a smaller model"
    raise BadInput(
        f"{model.id}: its weights{beside if job.passes else ''} take {weights_bytes / GIB:.1f} GiB "
        f"in {model.dtype}, and {gpu} has {memory / GIB:.1f} GiB. Choose a larger GPU (on a "
        "cluster, by cluster.profile), or "
        f"{smaller if model.dtype == 'float32' else 'a smaller model'}."
    )
