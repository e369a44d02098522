"""Workers that are lost, one after the other. tests/slow has real ones."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate import worker_pool
from imagekiln.steps.generate.worker_pool import make_shards
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.runs import planned


def test_where_all_workers_are_lost_the_exit_code_is_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "WORKER_CODE", "raise SystemExit(7)")
    run = planned(tmp_path, str(tmp_path / "out"))
    shards = range(len(run.plan.shards))
    with pytest.raises(TryAgain, match=r"images are missing.*exit code 7.*to resume") as error:
        make_shards(open_store(run.uri), run.plan, shards, [{}, {}], NoProgress(), Stop())
    assert error.value.exit_code == 75
