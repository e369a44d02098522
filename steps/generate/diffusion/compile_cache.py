"""Compiled code that pods share, so that the next one need not compile.

Loading it runs it: whoever can write where it is kept can run code in the pods. So that is the
cache of model files, never the output. Objects are not signed: a pod that could sign its code for
others would hold the key that an intruder needs.

What decides code is the configuration of the networks, never their weights, so all fine-tunes of a
model share it. PyTorch compares each piece with what it would compile before it runs it.
"""

import hashlib
import inspect
import json
import logging
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import diffusers
import torch

from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.generate.diffusion.kernels import kernel_choices
from imagekiln.steps.generate.diffusion.patches import fresh_compile_artifacts
from imagekiln.steps.models.component_files import read_json
from imagekiln.steps.models.facts import configuration_folder
from imagekiln.steps.runs.keys import compiled_code_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import local_path
from imagekiln.steps.storage.store import Store

FORMAT_HEADER = b"imagekiln compiled code 1\n"
DIGEST_BYTES = 32
MAX_OBJECT_BYTES = 2**30  # an object is held in memory, and anybody may have put it there
# The folder of the model cache that holds it. Templates set it where that outlives the pod: else
# the code would be saved for nobody, since processes of one machine share PyTorch's own cache.
CODE_CACHE_VARIABLE = "IMAGEKILN_CODE_CACHE"
CODE_VERSION = 1  # raised when this program compiles other code from the same model
LIBRARIES = ("imagekiln", "diffusers", "peft", "torchao", "triton")  # whose code is compiled
COMPILED_COMPONENTS = ("unet", "transformer", "vae")
log = logging.getLogger(__name__)


class CompileCache:
    """Code of one model on one kind of device: an object for each shape of batches or chunks."""

    def __init__(
        self, store: Store, device: torch.device, model: str, *, can_save: bool = True
    ) -> None:
        """Take the place, and in `model` all that decides the code except shape and machine."""
        self._store = store
        self._key_parts = [model, *_describe_software(), *_describe_machine(device)]
        self._downloads: dict[str, _Download] = {}
        self._can_save = can_save

    def prefetch(self, shape: str) -> None:
        """Start to read the code of a shape, while the model is loaded."""
        self._downloads[shape] = _Download(self._store, self._key(shape))

    @contextmanager
    def shared(self, shape: str) -> Iterator[None]:
        """Load the code of a shape. If there is none, save what is compiled in the block.

        Blocks may be nested: the code of an inner one is not part of the outer one's.
        """
        key = self._key(shape)
        is_kept = self._load(shape, key)
        with fresh_compile_artifacts():
            yield
            if not is_kept:
                self._save(key)

    def _key(self, shape: str) -> str:
        content = json.dumps([*self._key_parts, shape])
        return compiled_code_key(hashlib.sha256(content.encode()).hexdigest())

    def _load(self, shape: str, key: str) -> bool:
        """Load an object; False if there is none. One that is not usable stays as it is."""
        download = self._downloads.pop(shape, None) or _Download(self._store, key)
        try:
            content = download.result()
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
        try:
            # Of many pods that start together, one need serialize it and send it.
            if not self._can_save or self._store.exists(key):
                return
            artifacts = torch.compiler.save_cache_artifacts()
            if artifacts is None:
                return
            code, _ = artifacts
            content = _header(code) + code
            if len(content) <= MAX_OBJECT_BYTES:
                self._store.create(key, content)
        except KilnError as error:  # images do not depend on it
            self._can_save = False  # a cache that is read-only stays so
            log.warning("%s Compiled code is not kept.", error)


class _Download:
    """An object that is read in a thread. The process may end before it is read."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._content = b""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="compiled code", daemon=True)
        self._thread.start()

    def result(self) -> bytes:
        """The object, or one byte too many of one that is too large.

        Raises what reading raised.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._content

    def _read(self) -> None:
        try:
            self._content = self._store.read_prefix(self._key, MAX_OBJECT_BYTES + 1)
        except BaseException as error:  # noqa: BLE001  # for whoever asks for the result
            self._error = error


def open_compile_cache(plan: Plan, device: torch.device) -> CompileCache | None:
    """The compiled code that pods share, for the plan's model on this device.

    None if the environment names no folder, or if the model's configuration cannot be read: loading
    the model says why. Raises BadInput if the environment names a folder that cannot be.
    """
    folder = _named_folder()
    if folder is None:
        return None
    try:
        configuration = _code_configuration(plan)
    except KilnError:
        return None
    can_save = _is_writable(folder)
    if not can_save:
        log.warning("%s: cannot be written. Compiled code is not kept.", folder)
    return CompileCache(open_store(str(folder)), device, configuration, can_save=can_save)


def create_code_folder() -> None:
    """Create the folder for compiled code, if the environment names one.

    Pods may mount the cache read-only and this folder alone for writing; it must exist by then.
    Raises BadInput, TryAgain.
    """
    folder = _named_folder()
    if folder is not None:
        with translate_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)


def _named_folder() -> Path | None:
    """The folder for compiled code that the environment names. Raises BadInput."""
    name = os.environ.get(CODE_CACHE_VARIABLE)
    if not name:
        return None
    try:
        return local_path(name)
    except BadInput as error:
        raise BadInput(f"{CODE_CACHE_VARIABLE}: {error}") from error


def _is_writable(folder: Path) -> bool:
    """Whether the folder can be written, or else created. A volume of an image cannot."""
    while not os.path.exists(folder):  # noqa: PTH110  # Path.exists raises where it may not look
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _code_configuration(plan: Plan) -> str:
    """All of a plan that decides its code but shapes of batches.

    Raises BadInput, Missing and TryAgain where the model's configuration cannot be read.
    """
    folder = configuration_folder(plan.job.model)
    components = {name: _component_configuration(folder / name) for name in COMPILED_COMPONENTS}
    speed = plan.job.speed
    return json.dumps(
        {
            "pipeline": plan.model.pipeline,
            "components": components,
            "adapters": plan.adapters,
            "loras": {name: lora.sha256 for name, lora in sorted(plan.loras.items())},
            "dtype": plan.job.model.dtype,
            "speed": [speed.quantization, speed.vae],
            "kernels": repr(kernel_choices()),
        }
    )


def _component_configuration(folder: Path) -> dict[str, object] | None:
    """The arguments that build a component; None where the model has no such component.

    Those that the file omits have the defaults of its class, because models differ in the version
    of diffusers that wrote them.
    """
    path = folder / "config.json"
    if not path.is_file():
        return None
    config = read_json(path, str(path))
    name = str(config.get("_class_name"))
    network = getattr(diffusers, name, None)
    if not inspect.isclass(network):
        return config
    parameters = [*inspect.signature(network).parameters.values()]
    arguments = {
        parameter.name: config.get(parameter.name, parameter.default) for parameter in parameters
    }
    return {"class": name, **json.loads(json.dumps(arguments, default=repr))}


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


def _describe_software() -> list[str]:
    """The versions of all that has a part in the code."""
    libraries = [f"{name} {_installed_version(name)}" for name in LIBRARIES]
    pytorch = [torch.__version__, str(torch.version.cuda), platform.python_version()]
    return [f"code {CODE_VERSION}", *libraries, *pytorch]


def _installed_version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _describe_machine(device: torch.device) -> list[str]:
    """The hardware that code is compiled for."""
    # Code for a GPU has parts that run on the processor.
    processor = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if device.type != "cuda":
        return [*processor, device.type]
    major, minor = torch.cuda.get_device_capability(device)
    return [*processor, torch.cuda.get_device_name(device), f"{major}.{minor}"]
