"""Where a model's weights are kept while it runs, by their sizes and the GPU's memory alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.execution import Placement
from imagekiln.steps.job.job import Job

if TYPE_CHECKING:  # slow to import
    from huggingface_hub.utils import TensorInfo  # type: ignore[attr-defined]  # not marked so

GIB = 2**30
ComponentKind = Literal["texts", "denoiser", "others"]
# Components by the names of their folders, or tensors of a single file by the start of their names.
_TEXTS = re.compile(r"(?!image).*encoder|cond_stage_model|conditioner")
_OTHERS = re.compile(r"vae|vq|image_encoder|safety_checker|first_stage_model")
# The repeated blocks, by the names in all families. The first and last projections lie outside.
BLOCK_PATTERN = re.compile(r"(blocks|^layers|^noise_refiner|^context_refiner)\.\d")
# Modulation layers have one row per image: too little to gain from float8.
MODULATION_PATTERN = re.compile(r"norm|_mod\.|modulation|time_emb")
SIDE_MULTIPLE = 16  # both sides of a product in 8 or 4 bits must be multiples of this
# Of a GPU's memory, beside weights: CUDA's own, and a batch, which is halved if it needs more.
CONTEXT_BYTES = GIB
WIDE_INTEGERS = {"I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8}  # bytes
ACTIVATION_SHARE = 0.1
PLACEMENTS: Mapping[Placement, str] = {
    "resident": "all on the GPU",
    "texts_first": "text encoders and denoiser by turns on the GPU",
    "offload": "streamed to the GPU at every step, many times slower",
}


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Bytes of a model's weights once they are loaded, by the kind of their component.

    `quantizable` of the denoiser's bytes are of layers that fp8 halves. `largest` are the bytes of
    the largest layer of text encoders and denoiser.
    """

    texts: int = 0
    denoiser: int = 0
    others: int = 0
    quantizable: int = 0
    largest: int = 0

    def __add__(self, other: "WeightSizes") -> "WeightSizes":
        """Add the sizes of other files of the model."""
        return WeightSizes(
            self.texts + other.texts,
            self.denoiser + other.denoiser,
            self.others + other.others,
            self.quantizable + other.quantizable,
            max(self.largest, other.largest),
        )

    @property
    def total(self) -> int:
        """The bytes of all components."""
        return self.texts + self.denoiser + self.others

    def in_fp8(self) -> "WeightSizes":
        """Return the sizes with the denoiser's blocks in float8, from 16 bits."""
        return replace(self, denoiser=self.denoiser - self.quantizable // 2, quantizable=0)


def component_kind(name: str) -> ComponentKind:
    """Return the kind of a pipeline's component, by its name."""
    if _OTHERS.match(name):  # a VAE has an encoder, too
        return "others"
    return "texts" if _TEXTS.match(name) else "denoiser"


def measure_tensors(
    component: str | None,
    tensors: Mapping[str, "TensorInfo"],
    float_bytes: int,
    *,
    keeps_8_bits: bool = False,
) -> WeightSizes:
    """Add up the tensors of a file, by their headers.

    `component` is the name of the file's component; None for a single file with all of them. Floats
    of 8 bits stay as they are with `keeps_8_bits`, in quantized weights.
    """
    sizes = WeightSizes()
    for name, tensor in tensors.items():
        # All other floats are loaded in the model's dtype.
        is_kept = keeps_8_bits and tensor.dtype.startswith("F8")
        is_float = "F" in tensor.dtype and not is_kept
        number_bytes = float_bytes if is_float else WIDE_INTEGERS.get(tensor.dtype, 1)
        size = tensor.parameter_count * number_bytes
        kind = component_kind(component or name)
        is_halved = kind == "denoiser" and is_quantizable(name, tensor.shape)
        sizes += WeightSizes(
            **{kind: size},
            quantizable=size if is_halved else 0,
            largest=0 if kind == "others" else size,
        )
    return sizes


def is_quantizable(name: str, shape: Sequence[int]) -> bool:
    """Return whether a weight, by its name and shape, is one of those that fp8 halves."""
    is_repeated = BLOCK_PATTERN.search(name) and not MODULATION_PATTERN.search(name)
    return bool(is_repeated) and len(shape) == 2 and not any(side % SIDE_MULTIPLE for side in shape)


def needed_bytes(placement: Placement, models: Sequence[WeightSizes]) -> int:
    """Compute the most bytes that the models' weights take on the GPU at once."""
    whole = sum(models, WeightSizes())
    if placement == "resident":
        return whole.total
    if placement == "offload":  # the next layer is copied while one computes
        return whole.others + 2 * whole.largest
    # While a model's texts are encoded, its own denoiser is away.
    encoding = max(model.texts - model.denoiser for model in models)
    return whole.others + whole.denoiser + max(0, encoding)


def choose_placement(
    job: Job, models: Sequence[WeightSizes], gib: float | None, gpu: str = "the GPU of its profile"
) -> Placement | None:
    """Choose the first placement of the weights of a job's models that fits a GPU of `gib` GiB.

    What the job itself chooses has all the memory. Returns None if a size is unknown and the job
    chooses none. Raises BadInput if nothing fits; `gpu` names the GPU in the message.
    """
    asked = job.speed.placement
    choices = list(PLACEMENTS) if asked == "auto" else [asked]
    if gib is None or not models:
        return None if asked == "auto" else asked
    room = gib * GIB
    if asked == "auto":
        room -= CONTEXT_BYTES + ACTIVATION_SHARE * room
    for placement in choices:
        if needed_bytes(placement, models) <= room:
            return placement
    last = choices[-1]
    total = sum(models, WeightSizes()).total
    raise BadInput(
        f"{job.model.id}: the weights of the job's models take {total / GIB:.1f} GiB. With "
        f"speed.placement {last}, {needed_bytes(last, models) / GIB:.1f} GiB of them are on the "
        f"GPU at once, and {gpu} has {gib:.1f} GiB, {max(0.0, room) / GIB:.1f} GiB of it for "
        "weights. Choose a larger GPU (on a cluster, by cluster.profile), a smaller model, or "
        f"{'model.dtype bfloat16' if asked == 'auto' else 'speed.placement auto'}."
    )
