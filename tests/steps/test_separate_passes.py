"""Runs whose images are drawn first, and passes run over them later: the result is the same."""

from pathlib import Path

import pytest

from imagekiln.steps.job.job import Job
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.stats import load_stats
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.image_models import captioner_folder, upscaler_folder
from tests.runs import PROMPTS, job, write_prompts

BIG: dict[str, object] = {"kind": "upscale", "id": str(upscaler_folder())}
DETAIL: dict[str, object] = {"kind": "refine", "strength": 0.5, "scale": 1.5}
WORDS: dict[str, object] = {"kind": "caption", "id": str(captioner_folder()), "max_tokens": 8}
SEEDS = {"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}}
BEST = {"scores": SEEDS, "keep": {"of": 2, "by": "seeds", "losers": "drop"}}


def job_with(scratch: Path, **changes: object) -> Job:
    """A job of six prompts."""
    prompts = write_prompts(scratch / "prompts.parquet", PROMPTS[:6])
    return job(prompts, str(scratch / "out"), **changes)


def content_of(uri: str) -> dict[str, bytes]:
    """Every part, and what belongs to it."""
    folder = Path(uri)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in ("images", "index", "manifest")
        for path in sorted((folder / name).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"passes": {"big": BIG, "detail": DETAIL, "words": WORDS}},
        {"passes": {"big": BIG}, "format": "webdataset", "encoding": {"kind": "jpeg"}},
        {"passes": {"words": WORDS}, **BEST},
        {"passes": {"detail": DETAIL}, **BEST, "format": "files"},
    ],
    ids=["all", "upscale", "caption", "refine"],
)
def test_separate_passes_give_the_same_bytes(
    tmp_path: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    at_once = run(job_with(tmp_path / "a", run_id="run", **settings), NoProgress(), Stop())
    apart = job_with(tmp_path / "b", run_id="run", separate_passes=True, **settings)
    separate = run(apart, NoProgress(), Stop())
    assert separate.summary.ok == at_once.summary.ok > 0
    assert content_of(separate.uri) == content_of(at_once.uri)
    assert not list((Path(separate.uri) / "drawn").glob("*"))
    assert verify(separate.uri).images == verify(at_once.uri).images

    stats = [load_stats(open_store(result.uri), 0) for result in (at_once, separate)]
    first, second = stats
    assert first is not None
    assert second is not None
    assert (second.images, second.parts, second.attempts) == (first.images, first.parts, 1)
    assert [*second.seconds.passes] == [*first.seconds.passes]
    assert second.seconds.denoise > 0
