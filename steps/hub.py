"""Models on a hub: one pinned commit, safetensors only, each failure as a sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.job import Model

SMALL = ["*.json", "*/*.json", "*/merges.txt", "*/spiece.model", "*/tokenizer.model"]
WEIGHTS = [*SMALL, "*/*.safetensors"]


def configuration(model: Model) -> Path:
    """The model's small files, in the hub's cache on this machine."""
    return _snapshot(model, SMALL)


def weights(model: Model) -> Path:
    """All of the model's files, in the hub's cache on this machine."""
    return _snapshot(model, WEIGHTS)


def _snapshot(model: Model, patterns: list[str]) -> Path:
    if model.revision is None:
        raise BadInput(f"model.revision is missing: pin {model.id} to a commit, 40 hexadecimal digits.")
    from huggingface_hub import snapshot_download  # slow to import, and a local model needs none of it

    with _told(model):
        folder = Path(snapshot_download(model.id, revision=model.revision, allow_patterns=patterns))
    if not (folder / "model_index.json").is_file():
        raise BadInput(f"{model.id}: has no model_index.json, so it is no diffusers pipeline. Name another model.")
    return folder


@contextmanager
def _told(model: Model) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise BadInput(f"{model.id}: is gated. Accept its terms and set HF_TOKEN.") from error
    except errors.RevisionNotFoundError as error:
        raise Missing(f"{model.id}: has no revision {model.revision}. Correct model.revision.") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise Missing(f"{model.id}: no such model on the hub, or no access. Check model.id and HF_TOKEN.") from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        raise TryAgain(f"{model.id}: the hub could not be reached. Run again, or name a local folder.") from error
