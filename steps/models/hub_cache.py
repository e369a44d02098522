"""Files in the hub's cache that are no longer what the hub has: found by their names, and removed.

The hub's client looks whether a file is there, and when it downloads one, at its length alone. In
the cache, a file is named by what the hub calls its content, and the folder of a commit has links
to such files: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.models.weights import BeforePiece, iter_pieces, map_files, proceed
from imagekiln.steps.storage.failures import error_reason, translate_errors

# Since anything came. The hub's client ends a download after minutes of silence.
ABANDONED_SECONDS = 3600.0
SHA256_NAME = re.compile(r"[0-9a-f]{64}")  # of large files, which are in LFS
SHA1_NAME = re.compile(r"[0-9a-f]{40}")


def remove_abandoned_downloads(name: str) -> None:
    """Remove what downloads of a hub's model had written of files when they were killed.

    No later download goes on with it: each has a file of another name. Ages are by the clock of the
    cache's own disk, and whatever cannot be removed stays.
    """
    from huggingface_hub import constants

    contents = Path(constants.HF_HUB_CACHE, model_folder(name), "blobs")
    for file in contents.glob("*.incomplete"):
        with suppress(OSError):
            os.utime(contents)
            if contents.stat().st_mtime - file.lstat().st_mtime > ABANDONED_SECONDS:
                file.unlink()


def model_folder(name: str) -> str:
    """The folder of a hub's model in the cache."""
    return f"models--{name.replace('/', '--')}"


def forget_empty_listing(name: str, folder: Path) -> None:
    """Raise TryAgain where the hub has said that the commit in `folder` has no files.

    No commit has none, and the client would not ask again: it keeps what it was told, in files of
    its own (`_tree_cache.py`). Any other listing is left as it is.
    """
    listing = folder.parents[1] / "trees" / f"{folder.name}.json"
    content = None
    with suppress(OSError, ValueError):
        content = json.loads(listing.read_bytes())
    if isinstance(content, dict) and content.get("files") == {}:
        with suppress(OSError):
            listing.unlink()
        raise TryAgain(f"{name}: the hub lists no files of this revision. Run again.")


def require_undamaged(
    name: str, paths: Sequence[Path], before_piece: BeforePiece = proceed
) -> None:
    """Raise TryAgain where one of these files of what errors call `name` is damaged.

    It is removed, so that it is downloaded again. Whatever is no link into the cache is passed
    over: the client copies files where the cache cannot have links. `before_piece` may raise, which
    cancels it. Raises BadInput where a damaged file cannot be removed.
    """
    links = [path for path in paths if path.is_symlink()]
    with translate_errors(name):
        _require_no_broken_link(name, links)
        try:
            wholes = map_files(links, lambda path: _is_whole(path, before_piece))
        except FileNotFoundError as error:
            raise _lost_file(name) from error
    damaged = [path for path, whole in zip(links, wholes, strict=True) if not whole]
    for path in damaged:
        _remove(name, path)
    if damaged:
        raise TryAgain(
            f"{name}: {damaged[0].name} was damaged in this machine's cache, and was removed. "
            "Run again, which downloads it again."
        )


@contextmanager
def loading_from_cache(name: str, place: Path) -> Iterator[None]:
    """Raise TryAgain in place of BadInput where what is loaded in the block is damaged or gone.

    `place` is a file or folder, of the cache if `name` is that of a hub's model: then it was whole
    before.
    """
    try:
        yield
    except BadInput:
        if model_folder(name) in place.parts:
            require_undamaged(name, [place, *place.rglob("*")])
        raise


def require_no_lost_file(name: str, folder: Path) -> None:
    """Raise TryAgain where a file of a model's folder in the cache is gone, which was there."""
    if folder.parent.name == "snapshots":
        _require_no_broken_link(name, folder.rglob("*"))


def _require_no_broken_link(name: str, paths: Iterable[Path]) -> None:
    """Raise TryAgain where a link leads nowhere. It is removed: it may be of what nobody needs."""
    broken = [path for path in paths if not path.exists()]
    for link in broken:
        with suppress(OSError):
            link.unlink()
    if broken:
        raise _lost_file(name)


def _lost_file(name: str) -> TryAgain:
    return TryAgain(f"{name}: another process removed a file of it, which was damaged. Run again.")


def _is_whole(link: Path, before_piece: BeforePiece) -> bool:
    """Whether a file's content is what its name says, or its name says nothing."""
    content_name = link.readlink().name
    if SHA256_NAME.fullmatch(content_name):
        digests = [hashlib.sha256()]
    elif SHA1_NAME.fullmatch(content_name):
        header = b"blob %d\0" % link.stat().st_size
        # As git has it, or as mirrors do that do not know git.
        digests = [hashlib.sha1(start, usedforsecurity=False) for start in (header, b"")]
    else:
        return True
    for piece in iter_pieces(link, before_piece):
        for digest in digests:
            digest.update(piece)
    return content_name in [digest.hexdigest() for digest in digests]


def _remove(name: str, link: Path) -> None:
    file = link.resolve()  # where models share files, what the link leads to is a link itself
    try:
        if SHA256_NAME.fullmatch(file.name) is None:  # may be a file of somebody's own
            content = link.parent / link.readlink()
            file = content.parent.resolve() / content.name
        file.unlink()
    except FileNotFoundError:
        return  # another process removed it
    except OSError as error:
        raise BadInput(
            f"{name}: {file} is damaged, and cannot be removed ({error_reason(error)}). Remove it, "
            "and fill the model cache: `imagekiln fetch RUN`."
        ) from error
