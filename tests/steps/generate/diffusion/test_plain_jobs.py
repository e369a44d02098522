"""Whole jobs with pipelines that no table knows: planned, generated, aggregated, made again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from imagekiln.steps.generate.diffusion import compile as compile_module
from imagekiln.steps.local import run
from imagekiln.steps.maintain.reproduce import reproduce
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import eighths, families, models, plain, plain_unets, runs
from tests.faults import manifests

pytestmark = [
    pytest.mark.filterwarnings(models.DIFFUSERS_WARNS),
    pytest.mark.filterwarnings("ignore::FutureWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning"),
]
PROMPTS = ("a red circle", "two green triangles above the star", "a star", "small text in it")
# Of this year and before, each in every way.
EVERY_WAY = (
    *("ernie", "fibo", "glm", "hidream", "ideogram4", "kandinsky5", "kolors", "krea2", "longcat"),
    *("nucleus", "omnigen", "ovis", "prx", "qwen-image-2.1"),
)
OTHERS = sorted({*plain.MAKE, *plain_unets.MAKE} - {*EVERY_WAY} - {*plain_unets.SHARING})
FP8: dict[str, dict[str, object]] = {
    "model": {"dtype": "bfloat16"},
    "speed": {"quantization": "fp8"},
}
WAYS: dict[str, dict[str, dict[str, object]]] = {
    "alone": {},
    "batched": {},
    "compiled": {"speed": {"compile": "on"}},
    "fp8": FP8,
}
# One that takes batches, and one that does not.
QUICK = {("ernie", "batched"), ("omnigen", "batched")}
JOBS = [
    *((kind, way) for kind in EVERY_WAY for way in WAYS),
    *((kind, "batched") for kind in OTHERS),
]
CASES = [
    pytest.param(*job, marks=[] if job in QUICK else pytest.mark.slow, id="-".join(job))
    for job in JOBS
]


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace without making kernels, which takes minutes on a CPU, and let it stand in for fp8."""
    monkeypatch.setattr(compile_module, "COMPILE_OPTIONS", {"backend": "eager"})
    eighths.emulate(monkeypatch)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _folder(kind: str) -> Path:
    if kind in plain.MAKE:
        return plain.folder(kind)
    return plain_unets.folder(kind) if kind in plain_unets.MAKE else families.folder(kind)


def _batch(kind: str, way: str) -> int:
    if way == "alone":
        return 1
    return 2 if kind in plain.SIDES else 4


def _run(kind: str, way: str, tmp_path: Path) -> str:
    side = plain.side_of(kind)
    sizes = {"width": side, "height": side}, {"width": 2 * side, "height": side}
    rows = [{"prompt": prompt} | size for size in sizes for prompt in PROMPTS]
    if kind in plain.SIDES:  # these take long
        rows = rows[:2]
    settings = WAYS[way]
    job = runs.job(
        runs.write_prompts(tmp_path / "prompts.parquet", rows),
        str(tmp_path / "out"),
        batch={"images": _batch(kind, way)},
        model={"id": str(_folder(kind)), "dtype": "float32"} | settings.get("model", {}),
        **{name: value for name, value in settings.items() if name != "model"},
    )
    done = run(job, NoProgress(), Stop())
    assert done.summary.ok == len(rows)
    assert verify(done.uri).ok == len(rows)
    return done.uri


@pytest.mark.parametrize(("kind", "way"), CASES)
def test_a_whole_job_runs_and_its_images_are_made_again(
    kind: str, way: str, tmp_path: Path
) -> None:
    uri = _run(kind, way, tmp_path)
    stats = runs.stats_of(uri)
    assert stats is not None
    assert stats.compile_mode == ("regional" if way == "compiled" else "none")
    batch = _batch(kind, way) if stats.one_at_a_time is None else 1
    for row in manifests(uri)[1:6:4]:
        made = reproduce(uri, str(row["image_id"]), tmp_path / "again.png")
        assert made.equal == "bytes", made.likeness
        assert made.then is not None
        assert made.then.batch == batch
