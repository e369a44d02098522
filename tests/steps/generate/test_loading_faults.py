"""A device that fails, or has no room, while models are loaded: a sentence, and exit code 75."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate import scores
from imagekiln.steps.generate.diffusion import denoiser, pipeline, scorers
from imagekiln.steps.generate.step import LazyDenoiser
from imagekiln.steps.storage import open_store
from tests.models import folder
from tests.runs import planned
from tests.scorers import aesthetic_head, clip_folder

LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
TOLD: Mapping[Exception, str] = {
    LOST: r"the device failed .*Run the command again",
    FULL: r"the device has no room for it .*Run the command again",
}
OTHER = {"id": str(folder("sdxl")), "dtype": "float32"}
HEAD = {"kind": "aesthetic", "id": str(clip_folder()), "head": str(aesthetic_head())}
MAKES = {"kind": "own", "entry": "tests.scorers:SeedScore"}
# Where it fails, and what a job has for it to come there.
PLACES: Mapping[str, tuple[object, str, dict[str, object]]] = {
    "quantizing": (pipeline, "_require_text_input", {}),
    "its streams": (denoiser, "side_stream", {}),
    "a score's stream": (scores, "side_stream", {"scores": {"made": MAKES}}),
    "a score's head": (scorers, "load_file", {"scores": {"pretty": HEAD}}),
    "a score of one's own": (scores, "import_entry", {"scores": {"made": MAKES}}),
}


def _raise(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def _class_that_fails(error: Exception) -> Callable[..., type]:
    class Score:
        def __init__(self, _: str) -> None:
            raise error

    return lambda *_: Score


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("error", TOLD, ids=["lost", "full"])
@pytest.mark.parametrize("place", PLACES)
def test_machine_that_fails_while_models_are_loaded_is_to_be_tried_again(
    place: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, settings = PLACES[place]
    run = planned(tmp_path, str(tmp_path / "out"), [{"prompt": "x"}], **settings)
    fail = _class_that_fails if name == "import_entry" else _raise
    monkeypatch.setattr(module, name, fail(error))
    with pytest.raises(TryAgain, match=TOLD[error]):
        LazyDenoiser(open_store(run.uri), run.plan)()
