"""A pipeline from a model in one file, all of whose tensors are in one of its networks."""

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

import diffusers
import torch

from imagekiln.steps.generate.diffusion.loading import (
    load_networks,
    require_loaded,
    require_placed,
)
from imagekiln.steps.generate.diffusion.patches import Conversion, Untyped, recorded_conversion
from imagekiln.steps.models.component_files import read_model_index
from imagekiln.steps.models.weights import tensor_names

# The parts of a file that components are made of, by the start of the names of tensors. A file
# of a transformer alone has none.
FILE_PART = re.compile(
    r"(?:model\.diffusion_model|first_stage_model|vae|cond_stage_model"
    r"|(?:conditioner\.embedders|text_encoders)\.\w+)\.|"
)
# Of components, and of all tensors that may be theirs.
STARTS = {
    "text_encoder": ("cond_stage_model.", "conditioner.", "text_encoders."),
    "vae": ("first_stage_model.", "vae."),
}
SAMPLE = 8  # first numbers of a tensor, by which a copy of a part of it is known


def load_checkpoint(
    file: Path, folder: Path, pipeline: str, dtype: torch.dtype
) -> diffusers.DiffusionPipeline:
    """The pipeline of a model in one file, with the configuration in a folder.

    Raises ValueError if the file lacks a tensor, or has one that became a part of no network, and
    whatever loading raises.
    """
    beside = _networks_beside(file, folder, pipeline, dtype)
    with recorded_conversion() as conversion:
        try:
            pipe = getattr(diffusers, pipeline).from_single_file(
                str(file), config=str(folder), dtype=dtype, local_files_only=True, **beside
            )
        except NotImplementedError:  # what is not in the file cannot be cast
            for network in conversion.networks:
                require_loaded(network)
            raise
        require_placed(_unused_names(conversion))
    return pipe


def _networks_beside(
    file: Path, folder: Path, pipeline: str, dtype: torch.dtype
) -> dict[str, Untyped]:
    """The networks that the file lacks and the folder of the configuration has."""
    names = tensor_names(file, str(file))
    absent = tuple(
        component
        for component, starts in STARTS.items()
        if not any(name.startswith(starts) for name in names)
    )
    index = {
        name: value
        for name, value in read_model_index(folder, str(folder)).items()
        if name.startswith(absent) and any((folder / name).glob("*.safetensors"))
    }
    return load_networks(folder, index, pipeline, None, dtype)


def _unused_names(conversion: Conversion) -> list[str]:
    """The tensors that no network got, of the parts of the file that networks were made of."""
    read = conversion.read
    starts = sorted(each.data_ptr() for each in conversion.loaded)
    unused = [name for name, each in read.items() if not _holds_any(each, starts)]
    parts = {_part_of(name) for name in read.keys() - unused}
    unused = [name for name in unused if _part_of(name) in parts]
    ranges = sorted((each.data_ptr(), each.nbytes) for each in read.values())
    copies = [each for each in conversion.loaded if not _lies_in_any(each, ranges)]
    return [name for name in unused if not _is_copied(read[name], copies)]


def _part_of(name: str) -> str:
    match = FILE_PART.match(name)
    return match[0] if match else ""


def _holds_any(tensor: torch.Tensor, starts: Sequence[int]) -> bool:
    """Whether one of the addresses lies in a tensor's memory: views of it begin there."""
    place = bisect_left(starts, tensor.data_ptr())
    return place < len(starts) and starts[place] < tensor.data_ptr() + tensor.nbytes


def _lies_in_any(tensor: torch.Tensor, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether a tensor's memory begins in one of the ranges, each a start and a size."""
    place = bisect_right(ranges, (tensor.data_ptr(), sys.maxsize)) - 1
    return place >= 0 and tensor.data_ptr() < sum(ranges[place])


def _is_copied(tensor: torch.Tensor, copies: Sequence[torch.Tensor]) -> bool:
    """Whether a copy begins with the tensor's first numbers, or has its numbers in another order.

    So it is for layers that are split, transposed or swapped.
    """
    first = tensor.flatten()[:SAMPLE].double()
    total = tensor.double().sum()
    return any(
        torch.equal(copy.flatten()[:SAMPLE].double(), first)
        or (copy.numel() == tensor.numel() and bool(torch.isclose(copy.double().sum(), total)))
        for copy in copies
    )
