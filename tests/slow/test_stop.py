"""The installed command, in a process of its own, asked to stop as the kubelet asks."""

import os
import signal
import subprocess
import sysconfig
import time
from pathlib import Path

from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.runs.stats import load_stats
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.signals import GRACE_SECONDS
from imagekiln.steps.storage import open_store
from tests.kills import plan_run

IMAGES = 200
COMMAND = Path(sysconfig.get_path("scripts")) / "imagekiln"


def test_generate_asked_to_stop_twice_exits_75_in_time_and_a_rerun_completes(
    store_uri: str, tmp_path: Path
) -> None:
    run = plan_run(tmp_path, store_uri, IMAGES)
    store = open_store(run.uri)
    parts = read_shard(store, run.plan, 0)
    generate = [str(COMMAND), "generate", run.uri, "--shard", "0"]
    with subprocess.Popen(
        generate, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while not store.exists(parts[2].key):
            assert process.poll() is None
            time.sleep(0.05)
        signaled = time.monotonic()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)  # Argo's executor and the kubelet may each send one
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75
    assert time.monotonic() - signaled < GRACE_SECONDS + 5
    missing = missing_parts(store, parts)
    assert 0 < len(missing) < len(parts)
    assert (
        stderr.splitlines()[-1]
        == f"{run.uri}: shard 0 was stopped with {pluralize(len(missing), 'part')} left. "
        "Run the same command again to resume."
    )
    subprocess.run(generate, check=True, capture_output=True, env=os.environ)
    subprocess.run([str(COMMAND), "aggregate", run.uri], check=True, capture_output=True)
    assert verify(run.uri).ok == IMAGES
    stats = load_stats(store, 0)
    assert stats is not None
    assert (stats.attempts, stats.images, stats.parts) == (2, IMAGES, len(parts))
