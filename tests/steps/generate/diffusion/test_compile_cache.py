"""Compiled code kept for others: used where it is sound, passed over where it is not."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from safetensors.torch import load_file, save_file
from torch._dynamo.utils import counters

from imagekiln.steps.errors import BadInput, Missing, TryAgain
from imagekiln.steps.generate.diffusion import compile_cache
from imagekiln.steps.generate.diffusion.compile_cache import (
    CODE_CACHE_VARIABLE,
    FORMAT_HEADER,
    CompileCache,
    create_code_folder,
    open_compile_cache,
)
from imagekiln.steps.generate.diffusion.kernels import (
    DETERMINISTIC_COMPILE_VARIABLE,
)
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import families, loras, runs

CPU = torch.device("cpu")
Pod = Callable[[str], None]


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    """Calls that begin as in a process on a machine of its own, which has compiled nothing yet."""

    def fresh(name: str) -> None:
        torch.compiler.reset()
        counters.clear()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name))

    # Thousands of lines, which pytest would keep.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    with torch._inductor.config.patch(compile_threads=1):  # no processes of its own
        fresh("first")
        yield fresh
    torch.compiler.reset()


@torch.no_grad()
def _run(code: CompileCache, batch: str = "4 images", side: int = 4) -> torch.Tensor:
    """A network without kernels of its own, which would take a C++ compiler seconds."""
    network = torch.nn.Linear(side, side)
    torch.nn.init.eye_(network.weight)
    torch.nn.init.ones_(network.bias)
    with code.shared(batch):
        done: torch.Tensor = torch.compile(network, dynamic=False)(torch.ones(2, side))
    return done


def _code(store: Store, model: str = "a model") -> CompileCache:
    return CompileCache(store, CPU, model)


def _hits() -> int:
    return (
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )


def _kept(store: Store) -> list[str]:
    return sorted(each.key for each in store.list_folder("_compiled"))


@pytest.mark.quick_cases(1)
def test_what_one_pod_compiled_the_next_one_loads(store_uri: str, pod: Pod) -> None:
    store = open_store(store_uri)
    made = _run(_code(store))
    (key,) = _kept(store)
    written = store.read(key)
    assert _hits() == 0
    pod("second")
    assert torch.equal(_run(_code(store)), made)
    assert _hits() > 0
    assert store.read(key) == written


def test_another_model_or_shape_has_code_of_its_own(tmp_path: Path, pod: Pod) -> None:
    store = open_store(str(tmp_path / "out"))
    first = _code(store)
    _run(first)
    _run(first, "8 images", side=8)
    sizes = [each.size for each in store.list_folder("_compiled")]
    assert max(sizes) < 1.5 * min(sizes)  # the second holds nothing of the first
    pod("second")
    _run(_code(store, "another model"))
    assert len(_kept(store)) == 3
    assert _hits() == 0


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("spoilt", ["cut", "flipped", "alien", "sealed"])
def test_spoilt_code_is_passed_over_with_a_sentence_and_left_where_it_is(
    spoilt: str, tmp_path: Path, pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(str(tmp_path / "out"))
    made = _run(_code(store))
    (key,) = _kept(store)
    content = store.read(key)
    head, code = len(FORMAT_HEADER) + 32, b"no artifacts"
    spoilt_content = {
        "cut": content[:-1],
        "flipped": content[:head] + bytes([content[head] ^ 1]) + content[head + 1 :],
        "alien": b"x",
        "sealed": FORMAT_HEADER
        + hashlib.sha256(code).digest()
        + code,  # whole, but nothing PyTorch knows
    }[spoilt]
    store.replace(key, spoilt_content)
    pod("second")
    assert torch.equal(_run(_code(store)), made)
    assert _hits() == 0
    assert (
        f"{store.uri_of(key)}: is not compiled code, or damaged; "
        "the model is compiled here. Delete it." in caplog.text
    )
    assert store.read(key) == spoilt_content


class Down:
    """A store that is away: for reading, or for writing."""

    def __init__(self, store: Store, *, reads: bool) -> None:
        self._store, self._reads = store, reads

    def read_prefix(self, key: str, most: int) -> bytes:
        if not self._reads:
            raise TryAgain(f"{key}: storage timed out.")
        return self._store.read_prefix(key, most)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def create(self, key: str, _: bytes) -> bool:
        raise TryAgain(f"{key}: storage timed out.")


@pytest.mark.usefixtures("pod")
@pytest.mark.parametrize(
    ("reads", "sentence"), [(False, "The model is compiled here."), (True, "is not kept.")]
)
def test_storage_that_fails_stops_no_image(
    reads: bool, sentence: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Down(open_store(str(tmp_path / "out")), reads=reads)
    assert torch.equal(_run(_code(store)), torch.full((2, 4), 2.0))  # type: ignore[arg-type]  # the rest is not asked for
    assert "storage timed out." in caplog.text
    assert sentence in caplog.text


def test_a_batch_that_fails_leaves_no_code(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "out"))
    with pytest.raises(ZeroDivisionError), _code(store).shared("4 images"):
        raise ZeroDivisionError
    assert _kept(store) == []


def _fine_tune(tmp_path: Path, seed: int) -> Path:
    """A model of the same configuration with weights of its own, saved by an older diffusers."""
    folder = tmp_path / f"model-{seed}"
    shutil.copytree(families.folder("sd"), folder)
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = {name: tensor + seed for name, tensor in load_file(weights).items()}
    save_file(tensors, weights)

    config_file = folder / "unet" / "config.json"
    config = json.loads(config_file.read_text())
    del config["dropout"]  # has its default, and older versions did not write it
    config |= {"_diffusers_version": "0.19.0", "_name_or_path": f"models/{seed}"}
    config_file.write_text(json.dumps(config))
    return folder


def _planned(
    tmp_path: Path,
    run_id: str,
    folder: Path | None = None,
    lora: int | None = None,
    **speed: object,
) -> PlanResult:
    style = {} if lora is None else {"style": {"id": str(loras.folder("sd", lora))}}
    folder = folder or families.folder("sd")
    model = {"id": str(folder), "dtype": "float32", "loras": style}
    return runs.planned(tmp_path, str(tmp_path / "out"), run_id=run_id, model=model, speed=speed)


def _open(planned: PlanResult) -> CompileCache | None:
    return open_compile_cache(planned.plan, CPU)


def _compile(planned: PlanResult) -> None:
    cache = _open(planned)
    assert cache is not None
    _run(cache)


@pytest.fixture
def model_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """What Imagekiln keeps in the model cache of the machine."""
    monkeypatch.setenv(CODE_CACHE_VARIABLE, str(tmp_path / "models" / "imagekiln"))
    return open_store(str(tmp_path / "models" / "imagekiln"))


def test_fine_tunes_of_a_model_share_their_code(
    tmp_path: Path, pod: Pod, model_cache: Store
) -> None:
    base = _planned(tmp_path, "base")
    tuned = _planned(tmp_path, "tuned", _fine_tune(tmp_path, 1))
    assert base.plan.model.digest != tuned.plan.model.digest
    _compile(base)
    pod("second")
    _compile(tuned)
    assert _hits() > 0
    assert len(_kept(model_cache)) == 1


def test_the_folder_for_code_exists_before_pods_mount_it(
    tmp_path: Path, model_cache: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_code_folder()
    create_code_folder()
    assert Path(model_cache.uri).is_dir()
    monkeypatch.setenv(CODE_CACHE_VARIABLE, "")
    create_code_folder()
    assert [each.name for each in tmp_path.iterdir()] == ["models"]


def test_folder_of_a_user_that_does_not_exist_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = _planned(tmp_path, "run")
    monkeypatch.setenv(CODE_CACHE_VARIABLE, "~nobody-at-all/code")
    reason = (
        "IMAGEKILN_CODE_CACHE: ~nobody-at-all/code: ~nobody-at-all is the home folder of nobody"
    )
    with pytest.raises(BadInput, match=reason):
        create_code_folder()
    with pytest.raises(BadInput, match=reason):
        _open(planned)


@pytest.mark.slow
def test_loras_decoding_and_choices_of_kernels_have_code_of_their_own(
    tmp_path: Path, pod: Pod, model_cache: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compile(_planned(tmp_path, "base"))
    plans = [
        _planned(tmp_path, "style", lora=1),
        _planned(tmp_path, "other", lora=2),
        _planned(tmp_path, "slices", vae="slices"),
    ]
    for place, planned in enumerate(plans):
        pod(f"pod-{place}")
        _compile(planned)
    assert len(_kept(model_cache)) == 4
    monkeypatch.setenv(DETERMINISTIC_COMPILE_VARIABLE, "0")
    pod("quick")
    _compile(_planned(tmp_path, "quick"))
    assert len(_kept(model_cache)) == 5


@pytest.mark.usefixtures("model_cache")
def test_no_code_is_shared_where_nothing_outlives_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "models"))  # may be the pod's own
    monkeypatch.delenv(CODE_CACHE_VARIABLE)
    assert _open(_planned(tmp_path, "run")) is None


class Counting:
    """A store that counts how often an object is read whose key exists."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = 0

    def read_prefix(self, key: str, most: int) -> bytes:
        content = self._store.read_prefix(key, most)
        self.reads += 1
        return content


def test_code_that_was_read_ahead_is_used_and_not_read_again(tmp_path: Path, pod: Pod) -> None:
    store = open_store(str(tmp_path / "out"))
    made = _run(_code(store))
    pod("second")
    counting = Counting(store)
    code = _code(counting)  # type: ignore[arg-type]  # nothing more is asked for
    code.prefetch("4 images")
    assert torch.equal(_run(code), made)
    assert _hits() > 0
    assert counting.reads == 1


@pytest.mark.usefixtures("pod")
def test_a_cache_that_cannot_be_written_is_tried_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = _code(Down(open_store(str(tmp_path / "out")), reads=True))  # type: ignore[arg-type]
    _run(code)
    _run(code, "8 images", side=8)
    assert caplog.text.count("Compiled code is not kept.") == 1


class Empty:
    """A store without objects that records the keys that were looked for."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def read_prefix(self, key: str, _: int) -> bytes:
        self.keys.add(key)
        raise Missing(f"{key}: no such file.")

    def exists(self, _: str) -> bool:
        return False


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, model_cache: Store) -> Empty:  # noqa: ARG001
    """A model cache without compiled code."""
    store = Empty()
    monkeypatch.setattr(compile_cache, "open_store", lambda _: store)
    return store


def _looked_for(planned: PlanResult, store: Empty) -> frozenset[str]:
    """The keys that a process looks for."""
    store.keys.clear()
    cache = _open(planned)
    assert cache is not None
    with cache.shared("4 images"):
        pass
    return frozenset(store.keys)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "library", ["imagekiln", "diffusers", "peft", "torchao", "triton", "torch", "ours"]
)
def test_after_an_upgrade_code_is_compiled_and_kept_anew(
    library: str, tmp_path: Path, empty: Empty, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = _planned(tmp_path, "run")
    before = _looked_for(planned, empty)
    assert _looked_for(planned, empty) == before
    if library == "torch":
        monkeypatch.setattr(torch, "__version__", "99.0")
    elif library == "ours":
        monkeypatch.setattr(compile_cache, "CODE_VERSION", compile_cache.CODE_VERSION + 1)
    else:
        monkeypatch.setattr(
            compile_cache,
            "version",
            lambda name: "99.0" if name == library else version(name),
        )
    assert not before & _looked_for(planned, empty)
