"""Score images in batches on the device, and choose among candidates.

An image that a scorer cannot judge is marked and has no score. The candidates of a prompt are
adjacent in one part, so one process chooses among them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.diffusion.device import explain_device, side_stream
from imagekiln.steps.generate.diffusion.image_models import (
    BatchScorer,
    BoundScorer,
    Scorer,
    load_model_scorer,
)
from imagekiln.steps.generate.encoder import (
    mark_flat,
    marking_scores,
    read_only_view,
    to_image_spec,
)
from imagekiln.steps.imaging.codecs import RGB
from imagekiln.steps.imaging.measures import measure_sharpness
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.scores import AnyScore, KeepSettings, OwnScore, SharpnessScore
from imagekiln.steps.job.user_checks import import_score
from imagekiln.steps.runs.image import (
    FORGOTTEN_STATUS,
    OUTSCORED_STATUS,
    DrawnImage,
    ImageRow,
    ScoreValue,
)
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.storage.failures import error_reason

Scorers = Mapping[str, BoundScorer]


def load_own_scorer(setting: str, entry: str, device: str) -> Scorer:
    """Load a user's scorer: a function, or a class that is instantiated with the device's name."""
    function = import_score(setting, entry)
    if isinstance(function, type):
        try:
            function = function(device)
        except Exception as error:  # a user's code may raise anything
            raise explain_device(setting, error) or BadInput(
                f"{setting}: {entry} cannot be made ({error_reason(error)})."
            ) from error

    def score(images: Sequence[RGB], rows: Sequence[ImageRow], _: int) -> Sequence[float]:
        return function([*map(read_only_view, images)], [to_image_spec(row) for row in rows])  # type: ignore[return-value]  # checked by the caller

    return score


def score_sharpness(images: Sequence[RGB], _: Sequence[ImageRow], __: int) -> Sequence[float]:
    """Measure the sharpness of each RGB uint8 (height, width, 3)."""
    return [measure_sharpness(image) for image in images]


def load_scorers(plan: Plan, device: torch.device) -> dict[str, BatchScorer]:
    """Load the scorers of a plan, by the names of their scores."""
    if not plan.job.scores:
        return {}
    stream = side_stream(device)
    scorers: dict[str, BatchScorer] = {}
    for name, score in plan.job.scores.items():
        setting = f"scores.{name}"
        if isinstance(score, OwnScore):
            scorer: Scorer = load_own_scorer(setting, score.entry, str(device))
        elif isinstance(score, SharpnessScore):
            scorer = score_sharpness
        else:
            scorer = load_model_scorer(plan, name, device, stream)
        scorers[name] = BatchScorer(setting, scorer, plan.max_batch_size)
    return scorers


def score_and_rank(
    job: Job,
    scorers: Scorers,
    images: Sequence[DrawnImage],
    rows: Sequence[ImageRow],
    left_out: Collection[str] = (),
) -> list[DrawnImage]:
    """Add scores and candidate ranks to the images.

    Images whose ids are `left_out` do not compete.
    """
    images = [
        replace(image, rgb=None, status=FORGOTTEN_STATUS) if row.image_id in left_out else image
        for image, row in zip(images, rows, strict=True)
    ]
    scored = score_images(scorers, images, rows)
    if job.keep is None:
        return scored
    return rank_candidates(scored, job.scores, job.keep)


def score_images(
    scorers: Scorers, images: Sequence[DrawnImage], rows: Sequence[ImageRow]
) -> list[DrawnImage]:
    """Add scores to the images. An image of a single color is blank and has no score."""
    images = [mark_flat(image) for image in images]
    pixels: list[RGB] = []
    scored_rows: list[ImageRow] = []
    for image, row in zip(images, rows, strict=True):
        if image.rgb is not None and image.status == "ok":
            pixels.append(image.rgb)
            scored_rows.append(row)
    if not scored_rows:
        return images
    columns = [scorer(pixels, scored_rows) for scorer in scorers.values()]
    scores: dict[int, dict[str, ScoreValue]] = {}
    for row, *values in zip(scored_rows, *columns, strict=True):
        scores[row.index_in_part] = dict(zip(scorers, values, strict=True))
    return [replace(image, scores=scores.get(image.index_in_part, {})) for image in images]


def rank_candidates(
    images: Sequence[DrawnImage], scores: Mapping[str, AnyScore], keep: KeepSettings
) -> list[DrawnImage]:
    """Rank the candidates of each prompt, which are adjacent in groups of `keep.of`.

    Candidates within the bounds of all scores come first, then higher scores, then lower indexes.
    Images that are not ok have no rank and lose to ranked ones.
    """

    def order(image: DrawnImage) -> tuple[bool, bool, float]:
        value = image.scores[keep.by].value
        is_marked = bool(marking_scores(image.scores, scores))
        return value is None, is_marked, -(value or 0.0)

    ranked: list[DrawnImage] = []
    for start in range(0, len(images), keep.of):
        group = images[start : start + keep.of]
        best_first = sorted((image for image in group if image.status == "ok"), key=order)
        ranks = {image.index_in_part: rank for rank, image in enumerate(best_first, 1)}
        for image in group:
            rank = ranks.get(image.index_in_part)
            if ranks and rank != 1:
                image = replace(image, rgb=None, status=OUTSCORED_STATUS)  # lost
            ranked.append(replace(image, candidate_rank=rank))
    return ranked
