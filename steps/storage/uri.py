"""A small text that lies elsewhere: a job file in a bucket."""

from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import open_store

BUNDLED_PREFIX = "bundled:"
BUNDLED_FOLDER = Path(__file__).parents[2] / "datasets"


def resolve_path(name: str) -> str:
    """The path behind a `bundled:` name; any other name as it is, but for a leading `~`."""
    if name.startswith(BUNDLED_PREFIX):
        return str(BUNDLED_FOLDER / name.removeprefix(BUNDLED_PREFIX))
    return str(Path(name).expanduser()) if name.startswith("~") else name


MAX_TEXT_BYTES = 2**20


def is_remote_uri(name: str) -> bool:
    """Whether the name is a URI of another place than this disk."""
    return "://" in name and not name.startswith("file://")


def read_text(uri: str) -> str:
    """The text at a URI. Raises Missing, BadInput where it is no text, TryAgain where storage fails."""
    folder, _, name = uri.rpartition("/")
    content = open_store(folder).read(name)
    if len(content) > MAX_TEXT_BYTES:
        raise BadInput(
            f"{uri}: has {len(content)} bytes; at most {MAX_TEXT_BYTES} are read. Name a job file."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{uri}: is no UTF-8 text. Name a job file.") from error
