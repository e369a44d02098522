"""What is checked before torch is imported, which takes seconds: the libraries, run and shard."""

from importlib.util import find_spec

from imagekiln.steps.errors import NotInstalled
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import require_shard
from imagekiln.steps.storage import open_store

# Of the extra `generate`: an installation without it plans and submits.
GENERATION_LIBRARIES = ("torch", "diffusers", "transformers")


def require_libraries() -> None:
    """Raise NotInstalled where this installation cannot generate images."""
    missing = [name for name in GENERATION_LIBRARIES if find_spec(name) is None]
    if missing:
        raise NotInstalled(
            f"{', '.join(missing)}: not installed, and needed to generate images. "
            "Type: pip install 'imagekiln[generate]'."
        )


def require_planned_shard(uri: str, number: int) -> None:
    """Raise Missing where there is no run at `uri`, BadInput where it has no such shard."""
    store = open_store(uri)
    require_shard(store, load_plan(store), number)
