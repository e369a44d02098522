"""A finished job, for the tests of what the docs say."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def finished_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the docs name, and a finished run. Tests work on copies."""
    # Loads torch, which the process that only distributes the tests does without.
    from tests.package.finished_job import write_job

    folder = tmp_path_factory.mktemp("docs")
    write_job(folder)
    return folder
