"""Compiled code that pods share, so that the next one need not compile.

Loading it runs it: whoever can write where it is kept can run code in the pods. By default that is
the cache of model files. The output, which many may write to, takes the word of both the job and
the machine. `speed.compile_cache: off` neither reads nor writes any. Objects are not signed:
a pod that could sign its code for others would hold the key that an intruder needs.

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

from imagekiln.steps.errors import KilnError, Missing
from imagekiln.steps.generate.diffusion.kernels import kernel_choices
from imagekiln.steps.generate.diffusion.patches import fresh_compile_artifacts
from imagekiln.steps.models.facts import configuration_folder, read_json
from imagekiln.steps.runs.keys import compiled_code_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.store import Store

FORMAT_HEADER = b"imagekiln compiled code 1\n"
DIGEST_BYTES = 32
MAX_OBJECT_BYTES = 2**30  # an object is held in memory, and anybody may have put it there
MODEL_CACHE_VARIABLE = "HF_HOME"
TRUST_OUTPUT_VARIABLE = "IMAGEKILN_TRUST_OUTPUT_CODE"
MODEL_CACHE_FOLDER = "imagekiln"  # in the model cache, beside the hub's own folders
COMPILED_COMPONENTS = ("unet", "transformer", "vae")
log = logging.getLogger(__name__)


class CompileCache:
    """The code of one model on one kind of device, an object for each batch shape."""

    def __init__(self, store: Store, device: torch.device, model: str) -> None:
        """Take the place, and in `model` all that decides the code except batch and machine."""
        self._store = store
        self._key_parts = [model, *_describe_machine(device)]
        self._downloads: dict[str, _Download] = {}
        self._can_save = True

    def prefetch(self, batch: str) -> None:
        """Start to read the code of a batch shape, while the model is loaded."""
        key = self._key(batch)
        self._downloads[key] = _Download(self._store, key)

    @contextmanager
    def shared(self, batch: str) -> Iterator[None]:
        """Load the code of a batch shape. If there is none, save what is compiled in the block."""
        key = self._key(batch)
        exists = self._load(key)
        with fresh_compile_artifacts():
            yield
            if not exists and self._can_save:
                self._save(key)

    def _key(self, batch: str) -> str:
        content = json.dumps([*self._key_parts, batch])
        return compiled_code_key(hashlib.sha256(content.encode()).hexdigest())

    def _load(self, key: str) -> bool:
        """Load an object. Returns whether there is one, usable or not, so that none is written."""
        download = self._downloads.pop(key, None) or _Download(self._store, key)
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
        """The object, or one byte too many of one that is too large. Raises what reading raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._content

    def _read(self) -> None:
        try:
            self._content = self._store.read_prefix(self._key, MAX_OBJECT_BYTES + 1)
        except BaseException as error:  # noqa: BLE001  # for whoever asks for the result
            self._error = error


def open_compile_cache(plan: Plan, run: str, device: torch.device) -> CompileCache | None:
    """The compiled code that the plan's job shares, for its model on this device.

    None where the job shares none, or where the model's configuration cannot be read: loading the
    model says why.
    """
    place = _cache_folder(plan, run)
    if place is None:
        return None
    try:
        configuration = _code_configuration(plan)
    except KilnError:
        return None
    return CompileCache(open_store(place), device, configuration)


def create_code_folder() -> None:
    """Create the folder for compiled code in the model cache, if there is one.

    Pods may mount the cache read-only and this folder alone for writing; it must exist by then.
    Raises BadInput, TryAgain.
    """
    folder = _model_cache_folder()
    if folder is not None:
        with translate_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)


def _model_cache_folder() -> Path | None:
    """Imagekiln's own folder in the model cache; None where the environment names no such cache."""
    model_cache = os.environ.get(MODEL_CACHE_VARIABLE)
    return Path(model_cache).expanduser() / MODEL_CACHE_FOLDER if model_cache else None


def _cache_folder(plan: Plan, run: str) -> str | None:
    """The folder or URI under which code is kept; None where it is not."""
    setting = plan.job.speed.compile_cache
    if setting == "output":
        # The plan alone does not decide it: plan.json lies in the output too.
        if os.environ.get(TRUST_OUTPUT_VARIABLE) != "1":
            log.warning(
                "speed.compile_cache is output, which this machine does not trust, so the model is "
                "compiled here. Set %s=1 in its environment, or write models.",
                TRUST_OUTPUT_VARIABLE,
            )
            return None
        uri = run if "://" in run else os.path.normpath(Path(run).absolute())
        return uri.rstrip("/").rpartition("/")[0] or "/"
    folder = _model_cache_folder()
    return None if setting == "off" or folder is None else str(folder)


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
