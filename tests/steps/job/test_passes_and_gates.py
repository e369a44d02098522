"""Gates, scores and passes: their order, their defaults, and what they leave as it was."""

from imagekiln.steps.job.job import Job
from imagekiln.steps.job.passes import RefinePass
from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.plan.step import fixed_settings
from tests.smallest import SMALLEST

UPSCALE = {"kind": "upscale", "id": "org/upscaler"}
REFINE = {"kind": "refine"}
CAPTION = {"kind": "caption", "id": "org/captioner"}


def _job(**settings: object) -> Job:
    return validate_job({**SMALLEST, **settings})


def test_no_gate_fails_a_run_by_default() -> None:
    gates = _job().gates
    assert list(gates.all_gates) == ["blank", "safety", "low_contrast", "over_saturated"]
    assert [gate.share for gate in gates.all_gates.values()] == [None] * 4


def test_gates_mark_in_the_order_of_the_docs_and_only_those_that_are_set() -> None:
    checks = [{"name": "nsfw", "entry": "a.b:c"}, {"name": "logo", "entry": "a:d"}]
    gates = _job(gates={"checks": checks, "near_duplicate": {}}).gates
    assert list(gates.marking_gates) == [
        "low_contrast",
        "over_saturated",
        "nsfw",
        "logo",
        "near_duplicate",
    ]


def test_best_of_several_is_written_in_words_or_as_a_group() -> None:
    scores = {"clip_score": {"kind": "clip_score", "id": "org/clip"}}
    in_words = _job(scores=scores, keep="best 1 of  4 by clip_score")
    assert in_words == _job(scores=scores, keep={"of": 4, "by": "clip_score"})
    assert (in_words.candidates, _job(scores=scores).candidates) == (4, 1)


def test_passes_keep_their_order_and_their_defaults() -> None:
    parsed = _job(passes={"b": UPSCALE, "a": REFINE, "words": CAPTION})
    assert [*parsed.passes] == ["b", "a", "words"]
    refine = parsed.passes["a"]
    assert isinstance(refine, RefinePass)
    assert (refine.strength, refine.steps, refine.guidance, refine.scale) == (0.3, None, None, None)
    assert validate_job(parsed.model_dump(mode="json")) == parsed


def test_a_job_without_groups_is_written_as_before() -> None:
    written = _job().model_dump_json()
    assert not any(group in written for group in ("passes", "scores", "keep"))


def test_the_order_of_passes_counts_where_a_run_is_resumed() -> None:
    one, other = _job(passes={"a": UPSCALE, "b": REFINE}), _job(passes={"b": REFINE, "a": UPSCALE})
    assert one.passes == other.passes
    assert fixed_settings(one) != fixed_settings(other)
