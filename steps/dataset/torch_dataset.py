"""Conversion of a dataset to an iterable PyTorch dataset, whose parts workers and ranks share."""

import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

from imagekiln.steps.dataset.runs import ManifestSlice
from imagekiln.steps.errors import BadInput, NotInstalled
from imagekiln.steps.runs.row_values import to_rows
from imagekiln.steps.runs.tables import IMAGE_FIELD

if TYPE_CHECKING:
    from imagekiln.steps.dataset.dataset import Dataset

try:
    import torch.distributed
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError as error:
    raise NotInstalled(
        "to_torch needs PyTorch. Install it: pip install 'imagekiln[generate]'"
    ) from error

Example: TypeAlias = dict[str, Any]


class TorchDataset(IterableDataset[Example]):
    """Iterable dataset of one dictionary for each image, with the columns of the dataset."""

    def __init__(self, dataset: "Dataset", *, decode: bool) -> None:
        """Take the dataset to share. With `decode`, images are PIL images, otherwise bytes."""
        self._dataset = dataset
        self._decode = decode
        self._group_rank: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state for a spawned worker, which does not know the process group."""
        return {**self.__dict__, "_group_rank": _rank_in_group() or self._group_rank}

    def __iter__(self) -> Iterator[Example]:
        """Yield the images for this worker of this rank."""
        for batch in self._dataset.read_slices(self._own_slices()):
            for example in to_rows(batch):
                yield self._convert_image(example)

    def _own_slices(self) -> tuple[ManifestSlice, ...]:
        """Return adjacent slices, so that most manifests are read by only one worker."""
        worker = get_worker_info()
        workers = 1
        number = 0
        if worker is not None:
            workers = worker.num_workers
            number = worker.id
        # Read this late, since a process group may be initialized after the dataset is opened.
        rank, world_size = _rank_in_group() or self._group_rank or _rank_in_environment()
        share = rank * workers + number
        shares = world_size * workers
        slices = self._dataset.slices()
        count = len(slices)
        start = count * share // shares
        stop = count * (share + 1) // shares
        return slices[start:stop]

    def _convert_image(self, example: Example) -> Example:
        name = IMAGE_FIELD.name
        if name not in example:
            return example
        content = example[name]["bytes"]
        if self._decode:
            image = Image.open(io.BytesIO(content))
            image.load()
            return example | {name: image}
        return example | {name: content}


def _rank_in_group() -> tuple[int, int] | None:
    """Return the rank and the number of ranks of the process group; None without one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def _rank_in_environment() -> tuple[int, int]:
    """Return the rank and the number of ranks from the variables of `torchrun`.

    Raises BadInput if they are inconsistent: some images would be read twice, and others not at
    all.
    """
    world_size = os.environ.get("WORLD_SIZE") or "1"
    rank = os.environ.get("RANK") or ("0" if world_size == "1" else "")
    if rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size):
        return int(rank), int(world_size)
    raise BadInput(
        f"WORLD_SIZE is {world_size} and RANK is {rank or 'not set'}, so it is unknown which "
        "images this process is to read. Initialize torch.distributed before the dataset is "
        "iterated, or set both as torchrun does."
    )
