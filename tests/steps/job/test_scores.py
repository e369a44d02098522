"""The settings of scores: what is refused, in which sentence, and what they leave as it was."""

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.reader import validate_job

CLIP = {"kind": "clip_score", "id": "org/clip"}
JOB: dict[str, object] = {
    "name": "tiny",
    "prompts": "p.csv",
    "output": "out",
    "model": {"id": "org/model"},
}


def _message(**settings: object) -> str:
    with pytest.raises(BadInput) as error:
        validate_job({**JOB, **settings})
    return str(error.value)


def test_best_of_several_is_written_in_words_or_as_a_group() -> None:
    scores = {"clip_score": CLIP}
    in_words = validate_job({**JOB, "scores": scores, "keep": "best 1 of  4 by clip_score"})
    group = {"of": 4, "by": "clip_score"}
    as_group = validate_job({**JOB, "scores": scores, "keep": group})
    assert in_words == as_group
    assert in_words.candidates == 4
    assert validate_job({**JOB, "scores": scores}).candidates == 1


def test_a_job_without_scores_says_nothing_of_them() -> None:
    written = validate_job(JOB).model_dump_json()
    assert "scores" not in written
    assert "keep" not in written


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"keep": "best 1 of 4 by clip"},
            'has keep by "clip", and the scores are none; name one of them',
        ),
        (
            {"scores": {"a": CLIP}, "keep": "best 1 of 4 by b"},
            'has keep by "b", and the scores are a; name one of them',
        ),
        ({"scores": {"a": CLIP}, "keep": "the best"}, "write it as: best 1 of 4"),
        (
            {"scores": {"a": CLIP}, "keep": "best 1 of 99 by a"},
            "should be less than or equal to 16",
        ),
        ({"scores": {"ok": CLIP}}, "scores.ok, the name of a column"),
        (
            {"scores": {"a": {"id": "org/clip"}}},
            "scores.a.kind is missing; add it",
        ),
        ({"scores": {"a": {**CLIP, "min": 2, "max": 1}}}, "has min 2 and max 1; exchange them"),
        ({"scores": {"a": {"kind": "own", "entry": "os:system"}}}, "belongs to Python"),
    ],
)
def test_mistakes_are_sentences(settings: dict[str, object], sentence: str) -> None:
    message = _message(**settings)
    assert sentence in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["contrast", "prompt", "near_duplicate_of", "image"])
def test_a_score_may_not_be_called_as_a_column_of_a_dataset(name: str) -> None:
    assert f"scores.{name}, the name of a column" in _message(scores={name: CLIP})
