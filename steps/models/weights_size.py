"""The memory that a model's weights take on a GPU, by the headers of its files."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.hub import silence_hub_client, translate_hub_errors

REQUESTS_AT_ONCE = 8
UNUSED_PREFIX = "model_ema."  # of a checkpoint's second set of weights, which is not loaded
LOADED_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of a number in a file. Those of the first group are loaded in the model's dtype.
FLOAT_TYPES = {"F64", "F32", "F16", "BF16"}
STORED_BYTES = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}

Tensors = Iterable[tuple[str, int]]  # the type of a tensor, as the file names it, and its length


def measure_local_weights(model: ModelSettings, files: Iterable[Path]) -> int | None:
    """The bytes of the weights in these files, once they are loaded; None if they are damaged.

    That is for whoever reads them to say. Raises OSError.
    """
    with suppress(SafetensorError):
        return sum(_loaded_bytes(model, _read_tensors(file)) for file in files)
    return None


def measure_hub_weights(model: ModelSettings, names: Sequence[str]) -> int | None:
    """The bytes of the weights in these files on the hub; None where it does not answer.

    Only the headers are fetched.
    """
    from huggingface_hub import HfApi, errors

    def measure(name: str) -> int:
        header = HfApi().parse_safetensors_file_metadata(model.id, name, revision=model.revision)
        tensors = [(each.dtype, each.parameter_count) for each in header.tensors.values()]
        return _loaded_bytes(model, tensors)

    unusable = KilnError, errors.SafetensorsParsingError
    with (
        suppress(*unusable),
        translate_hub_errors(model),
        silence_hub_client(),
        ThreadPoolExecutor(REQUESTS_AT_ONCE, "weights-size") as pool,
    ):
        return sum(pool.map(measure, names))
    return None


def _read_tensors(file: Path) -> list[tuple[str, int]]:
    with safe_open(file, framework="np") as weights:
        names = [name for name in weights.keys() if not name.startswith(UNUSED_PREFIX)]  # noqa: SIM118  # no mapping
        slices = map(weights.get_slice, names)
        return [(each.get_dtype(), prod(each.get_shape())) for each in slices]


def _loaded_bytes(model: ModelSettings, tensors: Tensors) -> int:
    float_bytes = LOADED_BYTES[model.dtype]
    return sum(
        count * (float_bytes if kind in FLOAT_TYPES else STORED_BYTES.get(kind, 1))
        for kind, count in tensors
    )
