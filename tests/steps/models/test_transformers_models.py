"""The models of scores: what planning refuses, freezes, and leaves out of image ids."""

import shutil
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.models.transformers_models import (
    fetch_planned_files,
    fetch_planned_head,
    score_references,
)
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.runs.shard import read_shard_rows
from imagekiln.steps.storage import open_store
from tests.runs import planned
from tests.scorers import aesthetic_head, classifier_folder, clip_folder

ROWS = [{"prompt": "a red circle"}]
CLIP = {"kind": "clip_score"}


def plan_score(scratch: Path, **score: object) -> PlanResult:
    """A planned run with one score."""
    return planned(scratch, str(scratch / "out"), ROWS, scores={"s": score})


@pytest.mark.parametrize(
    ("score", "sentence"),
    [
        ({**CLIP, "id": str(classifier_folder())}, r"type vit, and clip_score needs clip"),
        (
            {"kind": "aesthetic", "id": str(clip_folder()), "head": "head.pt"},
            r"scores\.s\.head: head\.pt is not a safetensors file",
        ),
        ({"kind": "own", "entry": "tests.scorers:absent"}, r"scores\.s: .* does not import"),
    ],
)
def test_what_cannot_score_is_refused_at_planning(
    score: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(KilnError, match=sentence):
        plan_score(tmp_path, **score)


def test_a_plan_freezes_the_files_of_each_score(tmp_path: Path) -> None:
    copy = tmp_path / "clip"
    shutil.copytree(clip_folder(), copy)
    score = {"kind": "aesthetic", "id": str(copy), "head": str(aesthetic_head())}
    plan = plan_score(tmp_path, **score).plan
    assert [*plan.scores] == ["scores.s", "scores.s.head"]
    [(setting, reference)] = score_references(plan.job)
    assert fetch_planned_files(setting, reference, plan.scores[setting]) == copy
    (copy / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(BadInput, match=r"scores\.s: .* is not what the run was planned with"):
        fetch_planned_files(setting, reference, plan.scores[setting])
    head = str(aesthetic_head())
    assert fetch_planned_head("scores.s.head", head, plan.scores) == aesthetic_head()
    with pytest.raises(BadInput, match=r"scores\.s\.head: .* is not what the run was planned with"):
        fetch_planned_head("scores.s.head", head, {"scores.s.head": "sha256:0"})


def test_scores_name_another_run_and_no_other_image(tmp_path: Path) -> None:
    runs = [
        planned(tmp_path / "plain", str(tmp_path / "plain" / "out"), ROWS),
        plan_score(tmp_path / "scored", **CLIP, id=str(clip_folder())),
    ]
    assert runs[0].plan.run_id != runs[1].plan.run_id
    shards = [read_shard_rows(open_store(result.uri), result.plan, 0) for result in runs]
    assert shards[0] == shards[1]
