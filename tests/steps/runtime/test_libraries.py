"""What PyTorch's threads are told before it is imported."""

import logging
import os

import pytest

from imagekiln.steps.runtime.machine import limit_spinning, silence_libraries

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_user_sets_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "ACTIVE")
    limit_spinning()
    assert {each: os.environ[each] for each in VARIABLES if each in os.environ} == {name: "ACTIVE"}


@pytest.mark.parametrize("debug", [False, True])
def test_gcsfs_logs_failed_requests_only_when_asked_to(
    monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    logger = logging.getLogger("gcsfs")
    level = logger.level
    logger.setLevel(logging.NOTSET)
    monkeypatch.delenv("GCSFS_DEBUG", raising=False)
    if debug:
        monkeypatch.setenv("GCSFS_DEBUG", "1")
    silence_libraries()
    logs_errors = logger.isEnabledFor(logging.ERROR)
    logger.setLevel(level)
    assert logs_errors is debug
