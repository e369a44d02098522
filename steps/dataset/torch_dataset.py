"""A dataset as an iterable dataset of PyTorch, whose parts its workers and ranks share."""

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
    """One dictionary for each image, with the columns of the dataset."""

    def __init__(self, dataset: "Dataset", *, decode: bool) -> None:
        """Share the dataset's parts. With `decode`, images are PIL images, or else bytes."""
        self._dataset = dataset
        self._decode = decode
        self._group_rank: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, object]:
        """The state for a worker that is spawned, not forked: it knows no process group."""
        return {**self.__dict__, "_group_rank": _rank_in_group() or self._group_rank}

    def __iter__(self) -> Iterator[Example]:
        """The images of this worker of this rank."""
        for batch in self._dataset.read_slices(self._own_slices()):
            for example in to_rows(batch):
                yield self._convert_image(example)

    def _own_slices(self) -> tuple[ManifestSlice, ...]:
        """Neighbors, so that most manifests are read by one worker alone."""
        worker = get_worker_info()
        workers = 1
        number = 0
        if worker is not None:
            workers = worker.num_workers
            number = worker.id
        # Not before: a process group may be initialized after the dataset is opened.
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
    """The rank of this process and the number of ranks, by its process group; None without one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return None


def _rank_in_environment() -> tuple[int, int]:
    """The same by the variables of `torchrun`.

    Raises BadInput if they do not fit together: ranks would read the same images, and others
    none.
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
