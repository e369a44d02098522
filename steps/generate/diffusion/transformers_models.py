"""How models of transformers are loaded beside the denoiser: safetensors only, no remote code."""

from contextlib import AbstractContextManager

import torch

from imagekiln.steps.errors import BadInput, KilnError, explained_by
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


def explained_loading(setting: str, model_id: str, kind: str) -> AbstractContextManager[None]:
    """Report what loading a model raises in the block: a user's folder makes libraries raise all.

    Raises BadInput where it does not load as what this kind needs, TryAgain where the device has no
    room for it or failed.
    """
    subject = f"{setting}: {model_id}"

    def explain(error: Exception) -> KilnError:
        return explain_device(subject, error) or BadInput(
            f"{subject} does not load as a {kind} ({error_reason(error)}). Choose another model."
        )

    return explained_by(explain)


def pad_batch(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """The batch filled up to `size` with its last entry: another size gives other bytes."""
    return torch.cat([tensor, tensor[-1:].expand(size - len(tensor), *tensor.shape[1:])])
