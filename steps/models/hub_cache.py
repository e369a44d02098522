"""Damaged files and abandoned downloads in the cache of the Hugging Face hub.

The hub's client compares lengths only. In the cache, a file is named by its hash, and the folder
of a commit has links to such files: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from imagekiln.steps.errors import BadInput, Missing, TryAgain
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
    """Raise TryAgain if files of the model `name` are damaged or lost, and remove them.

    Only links into the cache are looked at. `before_piece` may raise, which cancels it.
    """
    links = [path for path in paths if path.is_symlink()]
    try:
        damaged = _remove_damaged(name, links, before_piece)
    except Missing as error:
        raise TryAgain(
            f"{name}: another process removed a file of it from this machine's cache. Run again, "
            "which downloads it again."
        ) from error
    if damaged:
        raise TryAgain(
            f"{name}: {damaged[0].name} was damaged in this machine's cache, and was removed. "
            "Run again, which downloads it again."
        )


def _remove_damaged(name: str, links: Sequence[Path], before_piece: BeforePiece) -> Sequence[Path]:
    """Remove the links whose files are lost or damaged, with these files; return the links."""
    with translate_errors(name):
        damaged = [link for link in links if not link.exists()]
        there = [link for link in links if link not in damaged]
        wholes = map_files(there, lambda link: _is_whole(link, before_piece))
        damaged += [link for link, whole in zip(there, wholes, strict=True) if not whole]
        for link in damaged:
            link.resolve().unlink(missing_ok=True)
            link.unlink(missing_ok=True)
    return damaged


@contextmanager
def loading_from_cache(name: str, place: Path) -> Iterator[None]:
    """Raise TryAgain in place of BadInput if what is loaded in the block is damaged or gone.

    `place` is a file or folder, of the cache if `name` is that of a hub's model.
    """
    try:
        yield
    except BadInput:
        if model_folder(name) in place.parts:
            require_undamaged(name, [place, *place.rglob("*")])
        raise


def _is_whole(link: Path, before_piece: BeforePiece) -> bool:
    """Return whether a file has the content that its name says, if its name is a hash."""
    content = link.resolve()
    if SHA256_NAME.fullmatch(content.name):
        digests = [hashlib.sha256()]
    elif SHA1_NAME.fullmatch(content.name):
        header = b"blob %d\0" % content.stat().st_size
        # As git hashes it, or as mirrors do that do not know git.
        digests = [hashlib.sha1(start, usedforsecurity=False) for start in (header, b"")]
    else:
        return True
    for piece in iter_pieces(content, before_piece):
        for digest in digests:
            digest.update(piece)
    return content.name in [digest.hexdigest() for digest in digests]
