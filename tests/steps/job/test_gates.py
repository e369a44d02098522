"""The settings of the gates."""

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import validate_job
from tests.smallest import SMALLEST


def _job(**gates: object) -> Job:
    return validate_job({**SMALLEST, "gates": gates})


def test_no_gate_fails_a_run_by_default() -> None:
    gates = _job().gates
    assert list(gates.all_gates) == ["blank", "safety", "low_contrast", "over_saturated"]
    assert [gate.share for gate in gates.all_gates.values()] == [None] * 4


def test_gates_mark_in_the_order_of_the_docs_and_only_those_that_are_set() -> None:
    checks = [{"name": "nsfw", "entry": "a.b:c"}, {"name": "logo", "entry": "a:d"}]
    gates = _job(checks=checks, near_duplicate={}).gates
    assert list(gates.marking_gates) == [
        "low_contrast",
        "over_saturated",
        "nsfw",
        "logo",
        "near_duplicate",
    ]


@pytest.mark.parametrize(
    ("gates", "sentence"),
    [
        (
            {"low_contrast": {"below": 0.6}},
            "gates.low_contrast.below is 0.6; it should be less than or equal to 0.5",
        ),
        ({"safety": {"below": 1}}, "gates.safety.below is not a setting"),
        ({"low_contrats": {}}, "gates.low_contrats is not a setting; write gates.low_contrast"),
        (
            {"checks": [{"name": "a"}]},
            "gates.checks[0].entry is missing",
        ),
        (
            {"checks": [{"name": "a", "entry": "a.b"}]},
            'gates.checks[0].entry is "a.b"; write the function, as',
        ),
        (
            {"checks": [{"name": "a", "entry": "os.path:join"}]},
            'gates.checks[0].entry is "os.path:join", which belongs to Python; name a function',
        ),
        (
            {"checks": [{"name": "blank", "entry": "a:b"}]},
            'gates.checks[0].name is "blank", the name of a built-in gate',
        ),
        (
            {"checks": [{"name": "a", "entry": "a:b"}] * 2},
            'gates.checks has two checks "a"; remove or rename one of them',
        ),
    ],
)
def test_mistakes_are_reported_with_their_path(gates: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        _job(**gates)
    assert sentence in str(caught.value)
