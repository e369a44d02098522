"""Which failures of a pod Argo retries, and how it waits in between."""

import re
from types import SimpleNamespace

import pytest
from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import Retries
from imagekiln.workflows.templates.pod_retries import (
    CHILD_RETRY_EXPRESSION,
    RETRY_EXPRESSION,
    retry_strategy,
)

# As many as the rule can tell apart: below two, two, and any number after that.
RETRIES_SO_FAR = (0, 1, 2, 50)


@pytest.mark.parametrize(
    ("exit_codes", "decisions"),
    [
        (("2", "3"), [False] * 4),
        (("75", "-1", "128", "137", "143"), [True] * 4),
        (("0", "1", "134", "139", "255"), [True, True, False, False]),
    ],
    ids=["a mistake or an incomplete run", "it may pass", "unexplained"],
)
def test_exit_code_decides_up_to_how_many_retries(
    exit_codes: tuple[str, ...], decisions: list[bool]
) -> None:
    for exit_code in exit_codes:
        assert [_is_retried(exit_code, retries) for retries in RETRIES_SO_FAR] == decisions


def test_pod_out_of_memory_is_retried_whatever_its_exit_code() -> None:
    assert _is_retried("1", 50, message="main: OOMKilled (exit code 1)")
    assert not _is_retried("2", 0, message="main: OOMKilled (exit code 2)")


def test_retries_wait_longer_each_time_unless_there_are_many() -> None:
    for few in (5, 6):
        backoff = m.Backoff(duration="15s", factor=m.IntOrString(2))
        assert retry_strategy(Retries(limit=few)).backoff == backoff
    for many in (7, 50):
        backoff = m.Backoff(duration="1m", factor=m.IntOrString(1))
        assert retry_strategy(Retries(limit=many)).backoff == backoff


# What Argo 4.1.2 writes of a pod that awaits a workflow, whose own program exits with 64.
FAILED_CHILD = (
    "main: Error (exit code 64): failure condition 'status.phase in (Error,Failed)' evaluated true"
)
NO_API_SERVER = (
    "main: Error (exit code 64): no more retries dial tcp 10.0.0.1:443: connect: connection refused"
)


@pytest.mark.parametrize(
    ("exit_code", "message", "is_retried"),
    [
        ("64", FAILED_CHILD, False),
        ("64", NO_API_SERVER, True),
        ("-1", "pod deleted", True),
        ("137", "main: OOMKilled (exit code 137)", True),
        ("0", "", True),
    ],
)
def test_pod_that_awaits_a_child_workflow_is_retried_unless_the_child_has_failed(
    exit_code: str, message: str, is_retried: bool
) -> None:
    for retries in RETRIES_SO_FAR:
        assert _is_retried(exit_code, retries, message, CHILD_RETRY_EXPRESSION) is is_retried


def _is_retried(
    exit_code: str, retries: int, message: str = "Error", expression: str = RETRY_EXPRESSION
) -> bool:
    """What Argo decides. Its expression is Python's but for `a contains b`, which is `b in a`."""
    expression = re.sub(r"([\w.]+) contains (\'[\w ]+\')", r"\2 in \1", expression)
    variables = {
        "lastRetry": SimpleNamespace(exitCode=exit_code, message=message),
        "retries": str(retries),
        "asInt": int,
    }
    decision = eval(expression, {"__builtins__": {}}, variables)  # noqa: S307  # our own text
    assert isinstance(decision, bool)
    return decision
