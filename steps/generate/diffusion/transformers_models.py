"""How models of transformers are loaded beside the denoiser: safetensors only, no remote code."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.generate.diffusion.device import explain_device
from imagekiln.steps.generate.diffusion.patches import Untyped
from imagekiln.steps.storage.failures import error_reason

LOAD_OPTIONS: dict[str, Untyped] = {"trust_remote_code": False, "local_files_only": True}
# Of models that score or change images: their results are compared and stored.
MODEL_OPTIONS: dict[str, Untyped] = {
    **LOAD_OPTIONS,
    "use_safetensors": True,
    "dtype": torch.float32,
}


@contextmanager
def explained_loading(setting: str, model_id: str, kind: str) -> Iterator[None]:
    """Report what loading a model raises in the block.

    Raises BadInput where it does not load as what this kind needs, TryAgain where the device has no
    room for it or failed.
    """
    try:
        yield
    except KilnError:
        raise
    except Exception as error:  # a user's folder makes the libraries raise anything
        reason = error_reason(error)
        if failure := explain_device(f"{setting}: {model_id}", error):
            raise failure from error
        raise BadInput(
            f"{setting}: {model_id} does not load as a {kind} ({reason}). Choose another model."
        ) from error


def pad_batch(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """The batch filled up to `size` with its last entry: another size gives other bytes."""
    return torch.cat([tensor, tensor[-1:].expand(size - len(tensor), *tensor.shape[1:])])
