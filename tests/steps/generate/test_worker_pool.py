"""Workers that are lost, one after the other. tests/slow has real ones."""

import time
from pathlib import Path

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.steps.generate import worker_pool
from imagekiln.steps.generate.worker_pool import make_shards
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.runs import planned

# Of two workers, that of the first part fails while the other finishes its last part.
FAILS_BESIDE_A_LAST_PART = """
import sys, time, types
from contextlib import contextmanager
from pathlib import Path
sys.path[:] = {{path!r}}
begun = Path({begun!r})

def wait_until(is_true):
    while not is_true():
        time.sleep(0.01)

def make_shard(_, *, stop, parts, **__):
    if parts.start == 0:
        wait_until(begun.exists)
        raise RuntimeError("a bug")
    with stop.deferred():
        begun.touch()
        wait_until(lambda: stop.requested_at is not None)

@contextmanager
def open_stage(*_):
    yield make_shard

stages = types.SimpleNamespace(open_stage=open_stage)
sys.modules["imagekiln.steps.generate.shard_stages"] = stages
from imagekiln.steps.generate.worker import main
main({{descriptor}})
"""


def test_where_one_worker_fails_another_ends_with_the_part_that_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = FAILS_BESIDE_A_LAST_PART.format(begun=str(tmp_path / "begun"))
    monkeypatch.setattr(worker_pool, "WORKER_CODE", code)
    run = planned(tmp_path, str(tmp_path / "out"))
    monkeypatch.setattr(worker_pool, "END_SECONDS", 60.0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="a bug"):
        make_shards(open_store(run.uri), run.plan, range(2), [{}, {}], NoProgress(), Stop())
    assert time.monotonic() - began < 60


def test_where_all_workers_are_lost_the_exit_code_is_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "WORKER_CODE", "raise SystemExit(7)")
    run = planned(tmp_path, str(tmp_path / "out"))
    shards = range(len(run.plan.shards))
    with pytest.raises(TryAgain, match=r"images are missing.*exit code 7.*to resume") as error:
        make_shards(open_store(run.uri), run.plan, shards, [{}, {}], NoProgress(), Stop())
    assert error.value.exit_code == 75
