"""Compiled code kept under the run's output, so that the next pod need not compile.

Whoever may write there may run code in the pods, for that is what it is. `speed.compile_cache: off` keeps and reads
none.
"""

import hashlib
import json
import logging
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import torch
from torch.compiler._cache import CacheArtifactManager

from imagekiln.steps.errors import KilnError, Missing
from imagekiln.steps.runs.keys import compiled_code_key
from imagekiln.steps.storage.store import Store

FORMAT_HEADER = b"imagekiln compiled code 1\n"
DIGEST_BYTES = 32
MAX_OBJECT_BYTES = (
    2**30
)  # of one object: what a stranger put there could be of any size, and is held in memory
log = logging.getLogger(__name__)


class CompileCache:
    """The code of one model on one kind of device, an object for each batch shape."""

    def __init__(self, store: Store, device: torch.device, model: str) -> None:
        """Take the output, and in `model` everything that decides the code but for the batch and the machine."""
        self._store = store
        self._decides = [model, *_describe_machine(device)]

    @contextmanager
    def shared(self, batch: str) -> Iterator[None]:
        """Load the code of a batch shape, if any is kept. If none is, keep what is compiled in the block."""
        key = compiled_code_key(
            hashlib.sha256(json.dumps([*self._decides, batch]).encode()).hexdigest()
        )
        there = self._load(key)
        with (
            CacheArtifactManager.with_fresh_cache()
        ):  # of this shape only, else each object would hold all before it
            yield
            if not there:
                self._save(key)

    def _load(self, key: str) -> bool:
        """Whether an object is there, and sound or not, none is to be written."""
        try:
            content = self._store.read_prefix(key, MAX_OBJECT_BYTES + 1)
        except Missing:
            return False
        except KilnError as error:
            log.warning("%s The model is compiled here.", error)
            return True
        code = content[len(FORMAT_HEADER) + DIGEST_BYTES :]
        sound = (
            bool(code)
            and len(content) <= MAX_OBJECT_BYTES
            and content[: -len(code)] == _header(code)
        )
        if not sound or not _load_artifacts(code):
            log.warning(
                "%s: is no compiled code, or damaged; the model is compiled here. Delete it.",
                self._store.uri_of(key),
            )
        return True

    def _save(self, key: str) -> None:
        made = torch.compiler.save_cache_artifacts()
        if made is None or len(content := _header(made[0]) + made[0]) > MAX_OBJECT_BYTES:
            return
        try:
            if not self._store.exists(
                key
            ):  # by now: of many pods that begin together, one need send it
                self._store.create(key, content)
        except KilnError as error:  # the images do not need it
            log.warning("%s Compiled code is not kept.", error)


def _header(code: bytes) -> bytes:
    return FORMAT_HEADER + hashlib.sha256(code).digest()


def _load_artifacts(code: bytes) -> bool:
    try:
        return torch.compiler.load_cache_artifacts(code) is not None
    except Exception:  # noqa: BLE001  # of what another version wrote, anything may come
        return False


def _describe_machine(device: torch.device) -> list[str]:
    """The versions and the hardware that code is made for."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = ""
    software = [torch.__version__, str(torch.version.cuda), triton, platform.python_version()]
    processor = [
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
    ]  # a GPU's code has some for it, too
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        return [
            *software,
            *processor,
            torch.cuda.get_device_name(device),
            f"{capability[0]}.{capability[1]}",
        ]
    return [*software, *processor, device.type]
