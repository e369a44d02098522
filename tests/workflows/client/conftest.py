"""A cluster in memory for the tests of the client."""

import pytest

from tests.workflows.memory import Memory


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitting asks the hub for the size of a model."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def argo() -> Memory:
    return Memory()
