"""Several GPUs in one pod: a process for each GPU, sharing the shards of the pod."""

import os

from imagekiln.steps.errors import BadInput
from imagekiln.steps.generate.metrics_server import serve_metrics
from imagekiln.steps.generate.start import require_libraries
from imagekiln.steps.generate.workers import gpu_environments, make_shards
from imagekiln.steps.runs.run import open_run
from imagekiln.steps.runtime.machine import visible_gpus
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import Stop


def generate_shards(run: str, pod_index: int, workers: int, progress: Progress, stop: Stop) -> None:
    """Generate the shards of one pod with a process for each of its GPUs.

    Pod 0 generates the first `workers` shards of the run, pod 1 the next, and so on. Raises
    BadInput if there are none or they cannot be generated, TryAgain if storage or a device failed.
    """
    require_libraries()
    opened = open_run(run)
    plan = opened.addressed_plan
    shard_count = len(plan.shards)
    first = pod_index * workers
    end = min(first + workers, shard_count)
    shards = range(first, end)
    if pod_index < 0 or not shards:
        raise BadInput(
            f"{run}: has {shard_count} shards, so pod {pod_index} of {workers} workers has none. "
            "Count pods from 0."
        )
    # The number that the pod requested. Each worker finds out if its GPU is visible.
    names = visible_gpus(os.environ, workers)
    names += [str(index) for index in range(len(names), workers)]
    with serve_metrics(progress, plan, str(pod_index), in_workers=True) as variables:
        environments = [{**environment, **variables} for environment in gpu_environments(names)]
        make_shards(opened, plan, shards, environments, progress, stop)
