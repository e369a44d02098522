"""Compiled code kept under the run's output, so that the next pod need not compile.

Whoever can write there can run code in the pods, because that is what the objects hold.
`speed.compile_cache: off` neither reads nor writes any.
"""

import hashlib
import json
import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import torch

from imagekiln.steps.errors import KilnError, Missing
from imagekiln.steps.generate.diffusion.patches import fresh_compile_artifacts
from imagekiln.steps.runs.keys import compiled_code_key
from imagekiln.steps.storage.store import Store

FORMAT_HEADER = b"imagekiln compiled code 1\n"
DIGEST_BYTES = 32
MAX_OBJECT_BYTES = 2**30  # an object is held in memory, and anybody may have put it there
log = logging.getLogger(__name__)


class CompileCache:
    """The code of one model on one kind of device, an object for each batch shape."""

    def __init__(self, store: Store, device: torch.device, model: str) -> None:
        """Take the output, and in `model` all that decides the code except batch and machine."""
        self._store = store
        self._key_parts = [model, *_describe_machine(device)]

    @contextmanager
    def shared(self, batch: str) -> Iterator[None]:
        """Load the code of a batch shape. If there is none, save what is compiled in the block."""
        digest = hashlib.sha256(json.dumps([*self._key_parts, batch]).encode()).hexdigest()
        key = compiled_code_key(digest)
        exists = self._load(key)
        with fresh_compile_artifacts():
            yield
            if not exists:
                self._save(key)

    def _load(self, key: str) -> bool:
        """Load an object. Returns whether there is one, usable or not, so that none is written."""
        try:
            content = self._store.read_prefix(key, MAX_OBJECT_BYTES + 1)
        except Missing:
            return False
        except KilnError as error:
            log.warning("%s The model is compiled here.", error)
            return True
        code = _verified_code(content)
        if code is None or not _load_artifacts(code):
            log.warning(
                "%s: is not compiled code, or damaged; the model is compiled here. Delete it.",
                self._store.uri_of(key),
            )
        return True

    def _save(self, key: str) -> None:
        artifacts = torch.compiler.save_cache_artifacts()
        if artifacts is None:
            return
        code, _ = artifacts
        content = _header(code) + code
        if len(content) > MAX_OBJECT_BYTES:
            return
        try:
            # Of many pods that start together, one need send it.
            if not self._store.exists(key):
                self._store.create(key, content)
        except KilnError as error:  # images do not depend on it
            log.warning("%s Compiled code is not kept.", error)


def _header(code: bytes) -> bytes:
    return FORMAT_HEADER + hashlib.sha256(code).digest()


def _verified_code(content: bytes) -> bytes | None:
    """The code in an object; None where it is empty, too large or not what its header says."""
    if len(content) > MAX_OBJECT_BYTES:
        return None
    code = content[len(FORMAT_HEADER) + DIGEST_BYTES :]
    if not code or content[: -len(code)] != _header(code):
        return None
    return code


def _load_artifacts(code: bytes) -> bool:
    try:
        return torch.compiler.load_cache_artifacts(code) is not None
    except Exception:  # noqa: BLE001  # code of another version may raise anything
        return False


def _describe_machine(device: torch.device) -> list[str]:
    """The versions and the hardware that code is compiled for."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    software = [torch.__version__, str(torch.version.cuda), triton, platform.python_version()]
    # Code for a GPU has parts that run on the processor.
    processor = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if device.type != "cuda":
        return [*software, *processor, device.type]
    major, minor = torch.cuda.get_device_capability(device)
    return [*software, *processor, torch.cuda.get_device_name(device), f"{major}.{minor}"]
