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
from imagekiln.steps.runtime.signals import GRACE_SECONDS
from imagekiln.steps.storage import open_store
from tests.kills import planned

IMAGES = 200
COMMAND = Path(sysconfig.get_path("scripts")) / "imagekiln"


def test_generate_asked_to_stop_twice_exits_75_in_time_and_a_rerun_completes(
    store_uri: str, tmp_path: Path
) -> None:
    there = planned(tmp_path, store_uri, IMAGES)
    store = open_store(there.uri)
    wanted = read_shard(store, there.plan, 0)
    generate = [str(COMMAND), "generate", there.uri, "--shard", "0"]
    with subprocess.Popen(
        generate, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        while not store.exists(wanted[2].key):
            assert process.poll() is None
            time.sleep(0.05)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)  # Argo's executor and the kubelet may each send one
        _, said = process.communicate(timeout=60)
    assert process.returncode == 75
    assert time.monotonic() - asked < GRACE_SECONDS + 5
    left = missing_parts(store, wanted)
    assert 0 < len(left) < len(wanted)
    assert (
        said.splitlines()[-1]
        == f"{there.uri}: shard 0 was stopped with {len(left)} parts left. Run it again."
    )
    subprocess.run(generate, check=True, capture_output=True, env=os.environ)
    subprocess.run([str(COMMAND), "aggregate", there.uri], check=True, capture_output=True)
    assert verify(there.uri).ok == IMAGES
    told = load_stats(store, 0)
    assert told is not None
    assert (told.attempts, told.images, told.parts) == (2, IMAGES, len(wanted))
