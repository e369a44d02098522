"""The memory that weights take once they are loaded, and whether a GPU has room for them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.models.hub import silence_hub_client, translate_hub_errors

GIB = 2**30
FILES_AT_ONCE = 8


def measure_weights(model: ModelSettings, folder: Path, names: Sequence[str]) -> int | None:
    """The bytes that the weights in these files of a model take once they are loaded.

    Only headers are read, on the hub if the folder lacks a file. None if one cannot be read:
    that is for whoever loads it to say.
    """
    from huggingface_hub import HfApi, errors, parse_local_safetensors_file_metadata

    float_bytes = 4 if model.dtype == "float32" else 2

    def measure(name: str) -> int:
        if (folder / name).is_file():
            header = parse_local_safetensors_file_metadata(folder / name)
        else:
            header = HfApi().parse_safetensors_file_metadata(
                model.id, name, revision=model.revision
            )
        # Floats of all sizes are loaded in the model's dtype; there are few other numbers.
        counts = header.parameter_count.items()
        return sum(count * (float_bytes if "F" in kind else 1) for kind, count in counts)

    with (
        suppress(KilnError, errors.SafetensorsParsingError),
        translate_hub_errors(model),
        silence_hub_client(),
        ThreadPoolExecutor(FILES_AT_ONCE, "weights-size") as pool,
    ):
        return sum(pool.map(measure, names)) or None
    return None


def require_room(
    job: Job, weights_bytes: int | None, gib: float | None, gpu: str = "the GPU of its profile"
) -> None:
    """Raise BadInput if the weights of a job's models take more than the memory of a GPU.

    None is what is not known. `gpu` is how the sentence names the GPU.
    """
    if weights_bytes is None or gib is None or weights_bytes <= gib * GIB:
        return
    raise BadInput(
        f"{job.model.id}: the weights of the job's models take {weights_bytes / GIB:.1f} GiB in "
        f"{job.model.dtype}, and {gpu} has {gib:.1f} GiB. Choose a larger GPU (on a cluster, by "
        "cluster.profile) or a smaller model; bfloat16 takes half of float32 (model.dtype)."
    )
