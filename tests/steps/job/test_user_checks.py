"""A user's own checks, tried where the job is planned."""

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.gates import UserCheckGate
from imagekiln.steps.job.user_checks import find_untried_checks, import_check
from tests import own_checks


def _check(entry: str) -> UserCheckGate:
    return UserCheckGate(name="mine", entry=entry)


def test_check_that_imports_here_is_tried_without_a_word() -> None:
    check = _check("tests.own_checks:even")
    assert find_untried_checks([check]) == ()
    assert import_check(check) is own_checks.even


def test_check_whose_module_is_not_here_is_only_noted() -> None:
    assert find_untried_checks([_check("no_such_package.module:check")]) == (
        "gates.checks: mine: no_such_package.module:check was not tried, since "
        "no_such_package.module does not import here (ModuleNotFoundError: No module named "
        "'no_such_package'). Where images are generated, it must import.",
    )


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("tests.own_checks:missing", "does not import .AttributeError: module .tests.own_checks"),
        ("tests.own_checks:NOT_CALLABLE", "is not a function. Choose a function."),
    ],
)
def test_check_that_its_module_lacks_is_refused(entry: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        find_untried_checks([_check(entry)])
