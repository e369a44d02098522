"""Files in the hub's cache that are no longer what the hub has: found by their names, and removed.

The hub's client compares lengths alone. In the cache, a file is named by its hash, and the folder
of a commit has links to such files: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.steps.models.weights import BeforePiece, iter_pieces, map_files, proceed
from imagekiln.steps.storage.failures import translate_errors

ABANDONED_SECONDS = 3600.0  # the hub's client ends a download after minutes of silence
SHA256_NAME = re.compile(r"[0-9a-f]{64}")  # of large files, which are in LFS
SHA1_NAME = re.compile(r"[0-9a-f]{40}")


def model_folder(name: str) -> str:
    """The folder of a hub's model in the cache."""
    return f"models--{name.replace('/', '--')}"


def remove_abandoned_downloads(name: str) -> None:
    """Remove what killed downloads of a hub's model left: no later download goes on with it."""
    from huggingface_hub import constants

    for file in Path(constants.HF_HUB_CACHE, model_folder(name), "blobs").glob("*.incomplete"):
        with suppress(OSError):
            if time.time() - file.lstat().st_mtime > ABANDONED_SECONDS:
                file.unlink()


def require_undamaged(
    name: str, paths: Sequence[Path], before_piece: BeforePiece = proceed
) -> None:
    """Raise TryAgain where files of what errors call `name` are damaged or lost, and remove them.

    Whatever is no link into the cache is passed over. `before_piece` may raise, which cancels it.
    """
    links = [path for path in paths if path.is_symlink()]
    with translate_errors(name):
        lost = [link for link in links if not link.exists()]
        there = [link for link in links if link not in lost]
        wholes = map_files(there, lambda link: _is_whole(link, before_piece))
        damaged = lost + [link for link, whole in zip(there, wholes, strict=True) if not whole]
    for link in damaged:
        with translate_errors(str(link)):
            content = link.resolve()
            if SHA256_NAME.fullmatch(content.name) or SHA1_NAME.fullmatch(content.name):
                content.unlink(missing_ok=True)
            link.unlink(missing_ok=True)
    if damaged:
        raise TryAgain(
            f"{name}: {damaged[0].name} was damaged in this machine's cache, and was removed. "
            "Run again, which downloads it again."
        )


@contextmanager
def loading_from_cache(name: str, place: Path) -> Iterator[None]:
    """Raise TryAgain in place of BadInput where what is loaded in the block is damaged or gone.

    `place` is a file or folder, of the cache if `name` is that of a hub's model.
    """
    try:
        yield
    except BadInput:
        if model_folder(name) in place.parts:
            require_undamaged(name, [place, *place.rglob("*")])
        raise


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
