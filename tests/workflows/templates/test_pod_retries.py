"""Which failures of a pod Argo retries, and how it waits in between."""

import re
from types import SimpleNamespace

import pytest
from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import Retries
from imagekiln.workflows.templates.pod_retries import RETRY_EXPRESSION, retry_strategy

# As many as the rule can tell apart: below two, two, and any number after that.
RETRIES_SO_FAR = (0, 1, 2, 50)


@pytest.mark.parametrize("exit_code", ["2", "3"])
def test_mistake_of_the_user_and_incomplete_run_are_never_retried(exit_code: str) -> None:
    assert [_is_retried(exit_code, retries) for retries in RETRIES_SO_FAR] == [False] * 4


@pytest.mark.parametrize("exit_code", ["75", "-1", "137", "143"])
def test_what_may_pass_is_retried_up_to_the_limit(exit_code: str) -> None:
    assert [_is_retried(exit_code, retries) for retries in RETRIES_SO_FAR] == [True] * 4


@pytest.mark.parametrize("exit_code", ["0", "1", "134", "139", "255"])
def test_unexplained_exit_code_is_retried_while_fewer_than_two_retries_were_made(
    exit_code: str,
) -> None:
    decisions = [_is_retried(exit_code, retries) for retries in RETRIES_SO_FAR]
    assert decisions == [True, True, False, False]


def test_pod_out_of_memory_is_retried_whatever_its_exit_code() -> None:
    assert _is_retried("1", 50, message="main: OOMKilled (exit code 1)")
    assert not _is_retried("2", 0, message="main: OOMKilled (exit code 2)")


def test_retries_wait_longer_each_time_unless_there_are_many() -> None:
    few = retry_strategy(Retries(limit=5))
    assert few.backoff == m.Backoff(duration="15s", factor=m.IntOrString(2))
    many = retry_strategy(Retries(limit=50))
    assert many.backoff == m.Backoff(duration="1m", factor=m.IntOrString(1))


def _is_retried(exit_code: str, retries: int, message: str = "Error") -> bool:
    """What Argo decides. Its expression is Python's but for `a contains b`, which is `b in a`."""
    expression = re.sub(r"(\S+) contains (\'\w+\')", r"\2 in \1", RETRY_EXPRESSION)
    variables = {
        "lastRetry": SimpleNamespace(exitCode=exit_code, message=message),
        "retries": str(retries),
        "asInt": int,
    }
    decision = eval(expression, {"__builtins__": {}}, variables)  # noqa: S307  # our own text
    assert isinstance(decision, bool)
    return decision
