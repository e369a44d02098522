"""How large the files of a hub model are, as the hub lists them."""

from collections import defaultdict
from contextlib import suppress
from functools import cache
from pathlib import PurePosixPath
from typing import TypeAlias

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.fields import HubReference
from imagekiln.steps.job.job import ModelSettings
from imagekiln.steps.models.component_files import read_json
from imagekiln.steps.models.facts import is_hub_id, loaded_weights
from imagekiln.steps.models.hub import DEFAULT_REVISION, download_file, translate_hub_errors

INDEX_FILE = "model_index.json"
IN_COMPONENT = 2  # parts of the path of a component's file
WeightSizes: TypeAlias = dict[str, dict[PurePosixPath, int]]  # in bytes, by folder and path
TIMEOUT_SECONDS = 5.0  # of a question without which a job is submitted all the same


def download_bytes(model: ModelSettings) -> int | None:
    """The size of the weights that are loaded of a hub model; None where it is not known here."""
    if not is_hub_id(model.id):
        return None
    from huggingface_hub import constants  # slow to import, and local models do not need it

    # The files alone: a backfill asks for each of its nights, with whatever adapters.
    revision = model.revision or DEFAULT_REVISION
    files = ModelSettings(id=model.id, revision=revision, variant=model.variant)
    return _download_bytes(files.model_dump_json(), constants.ENDPOINT)


def language_model_bytes(model: HubReference) -> int | None:
    """The size of the weights of a language model on a hub; None where it is not known here."""
    with suppress(KilnError):
        files = ModelSettings(id=model.id, revision=model.revision or DEFAULT_REVISION)
        _, sizes = _list_safetensors(files)
        return sum(size for path, size in sizes.items() if len(path.parts) == 1) or None
    return None


@cache
def _download_bytes(model_json: str, endpoint: str) -> int | None:  # noqa: ARG001  # a key
    model = ModelSettings.model_validate_json(model_json)
    with suppress(KilnError):
        commit, weights = _list_safetensors(model)
        sizes = _by_component(weights)
        pinned = model.model_copy(update={"revision": commit})
        index = read_json(download_file(pinned, INDEX_FILE, "model"), model.id)
        components = [name for name in sizes if isinstance(index.get(name), list)]
        return sum(_loaded_bytes(sizes[name], model.variant) for name in components) or None
    return None


def _list_safetensors(model: ModelSettings) -> tuple[str | None, dict[PurePosixPath, int]]:
    """The revision's commit, and its safetensors. One request, which is not repeated."""
    from huggingface_hub import HfApi

    with translate_hub_errors(model):
        info = HfApi().model_info(
            model.id, revision=model.revision, files_metadata=True, timeout=TIMEOUT_SECONDS
        )
    files = {PurePosixPath(file.rfilename): file.size or 0 for file in info.siblings or []}
    weights = {path: size for path, size in files.items() if path.suffix == ".safetensors"}
    return info.sha, weights


def _by_component(weights: dict[PurePosixPath, int]) -> WeightSizes:
    sizes: WeightSizes = defaultdict(dict)
    for path, size in weights.items():
        if len(path.parts) == IN_COMPONENT:
            sizes[path.parts[0]][path] = size
    return sizes


def _loaded_bytes(sizes: dict[PurePosixPath, int], variant: str | None) -> int:
    return sum(sizes[path] for path in loaded_weights(sorted(sizes), variant))
