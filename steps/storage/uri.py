"""Names of files: paths, URIs and `bundled:` names, and small text files."""

from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.local import is_remote_uri as is_remote_uri
from imagekiln.steps.storage.local import local_path
from imagekiln.steps.storage.store import Store

BUNDLED_PREFIX = "bundled:"
BUNDLED_FOLDER = Path(__file__).parents[2] / "datasets"
MAX_TEXT_BYTES = 2**20


def resolve_path(name: str) -> str:
    """Return the path of a `bundled:` name. Expand a leading `~` in any other name."""
    if name.startswith(BUNDLED_PREFIX):
        return str(BUNDLED_FOLDER / name.removeprefix(BUNDLED_PREFIX))
    if name.startswith("~"):
        return str(local_path(name))
    return name


def locate_object(name: str) -> tuple[Store, str]:
    """Open the folder of the object at a path or URI, and return the object's key in it."""
    if is_remote_uri(name):
        folder, _, key = name.rpartition("/")
        return open_store(folder), key
    path = local_path(name)
    return open_store(str(path.parent)), path.name


def read_text(uri: str) -> str:
    """Read a job file at a URI. Raises Missing, BadInput if it is not text, TryAgain."""
    store, key = locate_object(uri)
    return decode_text(store.read_prefix(key, MAX_TEXT_BYTES + 1), uri, "a job file")


def decode_text(content: bytes, name: str, noun: str) -> str:
    """Decode a text file, which is expected to be `noun`. Raises BadInput."""
    if len(content) > MAX_TEXT_BYTES:
        raise BadInput(
            f"{name}: has more than the {MAX_TEXT_BYTES} bytes of any settings. Choose {noun}."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: is not UTF-8 text. Choose {noun}.") from error
