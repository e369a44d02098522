"""A cluster in memory for the tests of the client."""

import pytest

from tests.workflows.memory import Memory


@pytest.fixture
def argo() -> Memory:
    return Memory()
