"""Scores: what they are, whatever the batch, and what becomes of scorers that fail."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from PIL import Image as Pillow

from imagekiln.steps.aggregate.summary import load_summary
from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.image_models import BatchScorer
from imagekiln.steps.generate.scores import (
    load_own_scorer,
    load_scorers,
    rank_candidates,
    score_images,
)
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.scores import KeepSettings
from imagekiln.steps.local import run
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.image import DrawnImage, ImageRow, ScoreValue
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.runs import image_row, job, manifest_of, picture, planned, write_prompts
from tests.scorers import aesthetic_head, classifier_folder, clip_folder

CPU = torch.device("cpu")
COUNT = 7
# Float32, whose sums depend on the shape of a batch: relative to scores of about 1 to 100.
TOLERANCE = 1e-4
ROWS = [image_row(f"a red circle {'ab' * place}", place) for place in range(COUNT)]
PICTURES = [picture(place, side=24) for place in range(COUNT)]
SCORES: dict[str, dict[str, object]] = {
    "clip_score": {"kind": "clip_score", "id": str(clip_folder())},
    "nsfw": {"kind": "classifier", "id": str(classifier_folder()), "label": "nsfw"},
    "pretty": {"kind": "aesthetic", "id": str(clip_folder()), "head": str(aesthetic_head())},
    "pick": {"kind": "reward", "id": str(clip_folder())},
    "bright": {"kind": "own", "entry": "tests.scorers:brightness"},
}


def scored(
    plan: PlanResult, images: Sequence[DrawnImage], rows: Sequence[ImageRow]
) -> dict[str, list[float | None]]:
    """Each score of the images."""
    result = score_images(load_scorers(plan.plan, CPU), images, rows)
    return {name: [image.scores[name].value for image in result] for name in plan.plan.job.scores}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[int, PlanResult]:
    """A plan with all scores, by the size of its batches."""
    return {
        size: planned(
            folder := tmp_path_factory.mktemp("plan"),
            str(folder / "out"),
            scores=SCORES,
            batch={"images": size},
        )
        for size in (4, 8)
    }


def test_scores_are_those_of_the_libraries_themselves(plans: dict[int, PlanResult]) -> None:
    scores = scored(plans[4], PICTURES, ROWS)
    model = transformers.CLIPModel.from_pretrained(clip_folder()).eval()
    processor = transformers.AutoProcessor.from_pretrained(clip_folder())
    for place, (image, row) in enumerate(zip(PICTURES, ROWS, strict=True)):
        inputs = processor(
            text=[row.parameters.prompt],
            images=[image.rgb],
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=16,
        )
        with torch.no_grad():
            output = model(**inputs)
        logit = float(output.logits_per_image[0, 0])
        scale = float(model.logit_scale.detach().exp())
        assert scores["pick"][place] == pytest.approx(logit, abs=TOLERANCE)
        assert scores["clip_score"][place] == pytest.approx(100 * logit / scale, abs=TOLERANCE)

    classify = transformers.pipeline("image-classification", str(classifier_folder()))
    assert isinstance(PICTURES[0].rgb, np.ndarray)
    [probabilities] = classify([Pillow.fromarray(PICTURES[0].rgb)])
    by_label = {entry["label"]: entry["score"] for entry in probabilities}
    assert scores["nsfw"][0] == pytest.approx(by_label["nsfw"], abs=TOLERANCE)


def test_scores_do_not_depend_on_the_batch(plans: dict[int, PlanResult]) -> None:
    reference = scored(plans[4], PICTURES, ROWS)
    reversed_scores = scored(plans[4], PICTURES[::-1], ROWS[::-1])
    alone = scored(plans[4], PICTURES[2:3], ROWS[2:3])
    for name, values in reference.items():
        assert len(set(values)) == COUNT, name
        # A batch is always filled up: other neighbors give the same bytes.
        assert reversed_scores[name] == values[::-1]
        assert alone[name] == values[2:3]
    scores = scored(plans[8], PICTURES, ROWS)
    for name, values in reference.items():
        assert scores[name] == pytest.approx(values, abs=TOLERANCE)


def own(name: str, size: int = 4) -> BatchScorer:
    """A scorer of tests/scorers.py."""
    return BatchScorer(
        "scores.mine", load_own_scorer("scores.mine", f"tests.scorers:{name}", "cpu"), size
    )


def pixels() -> list[RGB]:
    """The pictures as arrays."""
    return [image.rgb for image in PICTURES if image.rgb is not None]


def test_an_image_that_cannot_be_scored_costs_only_its_own_score() -> None:
    scores = own("refuses_odd", size=1)(pixels(), ROWS)
    scores_in_batches = own("refuses_odd")(pixels(), ROWS)
    assert scores == scores_in_batches
    assert [score.value for score in scores] == [1.0, None] * 3 + [1.0]
    assert scores[1].reason == "the score failed: ValueError: an odd seed ? (in scores.mine)"
    numbers = own("not_a_number")(pixels(), ROWS)
    assert [score.value for score in numbers] == [1.0, None] * 3 + [1.0]
    assert numbers[1].reason == "the score is nan, no number"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("words", r"scores\.mine: returned a list for 4 images\. Return one number for each"),
        ("CannotBeMade", r"scores\.mine: .*:CannotBeMade cannot be made \(no such weights\)"),
        ("too_few", r"scores\.mine: returned 3 numbers for 4 images\. Return one"),
        ("always_fails", r"scores\.mine: failed at the first image \(RuntimeError: no such thing"),
        ("writes", r"scores\.mine: failed at the first image \(ValueError: .*read-only"),
        ("absent", r"scores\.mine: tests\.scorers:absent does not import"),
        ("LETTERS", r"scores\.mine: tests\.scorers:LETTERS is not a function"),
    ],
)
def test_a_scorer_that_is_wrong_is_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        own(name)(pixels(), ROWS)


def candidates(*values: float | None) -> list[DrawnImage]:
    """Images with these scores; without a number, one that failed."""
    return [
        DrawnImage(place, None, "failed", "no")
        if value is None
        else DrawnImage(place, PICTURES[place].rgb, scores={"s": ScoreValue(value)})
        for place, value in enumerate(values)
    ]


MINIMAL = {"name": "a", "prompts": "p.csv", "output": "out", "model": {"id": "org/name"}}
BRIGHT = {"s": {"kind": "own", "entry": "tests.scorers:brightness"}}


def ranked(*values: float | None, most: float | None = None) -> list[DrawnImage]:
    """The same with ranks, in groups of two, by a score that is at most so much."""
    return ranked_images(candidates(*values), most)


def ranked_images(images: list[DrawnImage], most: float | None = None) -> list[DrawnImage]:
    """Images with ranks, likewise."""
    settings = Job.model_validate({**MINIMAL, "scores": {"s": {**BRIGHT["s"], "max": most}}})
    keep = KeepSettings.model_validate({"of": 2, "by": "s"})
    return rank_candidates(images, settings.scores, keep)


def test_the_best_candidate_of_each_group_wins_and_of_equal_ones_the_first() -> None:
    images = ranked(1.0, 2.0, 3.0, 3.0)
    assert [image.candidate_rank for image in images] == [2, 1, 1, 2]
    assert [image.status for image in images] == ["outscored", "ok", "ok", "outscored"]
    assert [image.rgb is None for image in images] == [True, False, False, True]


def test_candidates_within_the_bounds_go_first_and_failed_ones_lose() -> None:
    assert [image.candidate_rank for image in ranked(1.0, 9.0, most=5.0)] == [1, 2]
    failed, winner = ranked(None, 2.0)
    assert (failed.status, failed.error, failed.candidate_rank) == ("outscored", "no", None)
    assert (winner.status, winner.candidate_rank) == ("ok", 1)
    assert [image.status for image in ranked(None, None)] == ["failed", "failed"]


def finished(folder: Path, **changes: object) -> tuple[str, pa.Table]:
    """A run of six images, and its manifest."""
    rows = [{"prompt": f"a red circle number {place}"} for place in range(6)]
    prompts = write_prompts(folder / "prompts.parquet", rows)
    sizes = {"batch": {"images": 2}, "part": {"images": 4}, "shard": {"images": 8}}
    result = run(job(prompts, str(folder / "out"), **sizes, **changes), NoProgress(), Stop())
    return result.uri, manifest_of(result.uri)


def test_the_best_of_several_needs_no_model(tmp_path: Path) -> None:
    scores = {"sharpness": {"kind": "sharpness"}}
    _, manifest = finished(tmp_path, scores=scores, keep="best 1 of 2 by sharpness")
    sharpness, ranks = (manifest[name].to_pylist() for name in ("sharpness", "candidate_rank"))
    assert len(ranks) > 2
    for place in range(0, len(ranks), 2):
        pair = sharpness[place : place + 2]
        assert ranks[place : place + 2] == ([1, 2] if pair[0] >= pair[1] else [2, 1])


def test_scores_are_columns_and_marks_and_change_no_image(tmp_path: Path) -> None:
    bright = {**SCORES["bright"], "max": 0}
    chosen = {"clip_score": SCORES["clip_score"], "bright": bright}
    uri, manifest = finished(tmp_path, scores=chosen)
    _, plain = finished(tmp_path)
    for name in ("image_id", "sha256", "pixels_sha256", "seed"):
        assert manifest[name] == plain[name]
    assert manifest.schema.field("clip_score").type == pa.float32()
    assert manifest["clip_score"].null_count == 0
    assert manifest["marks"].to_pylist() == [["bright"]] * 6
    assert manifest["marks_reason"][0].as_py().startswith("bright: 1")
    assert verify(uri).images == 6
    assert load_summary(open_store(uri)).marks["bright"] == 6
