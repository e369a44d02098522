from pathlib import Path

import pyarrow as pa
import pytest

from imagekiln.steps.runs.shard import read_shard
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store


@pytest.fixture(scope="session")
def planned_rows(tmp_path_factory: pytest.TempPathFactory) -> list[pa.Table]:
    """The image rows of two parts of a planned shard, with a column carried from the input."""
    from tests.runs import planned  # loads torch, which `make check` does without

    scratch = tmp_path_factory.mktemp("parts")
    prompts = [
        {"prompt": f"number {number}", "tag": None if number else "first"} for number in range(8)
    ]
    result = planned(scratch, str(scratch / "out"), prompts, carry=["tag"])
    return [part.rows for part in read_shard(open_store(result.uri), result.plan, 0)]


@pytest.fixture
def rows(planned_rows: list[pa.Table]) -> pa.Table:
    """The image rows of one part."""
    return planned_rows[0]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty folder of a run."""
    return open_store(str(tmp_path / "run"))
