"""The generate step of a process of its own: the model's files are hashed beside the imports."""

from imagekiln.steps.generate.diffusion.startup import LoadOptions, Startup
from imagekiln.steps.generate.preflight import require_libraries
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import require_shard
from imagekiln.steps.runs.start import StartClock
from imagekiln.steps.runs.stats import ShardStats
from imagekiln.steps.runtime.progress import Progress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store


def generate_in_new_process(
    uri: str,
    number: int,
    progress: Progress,
    stop: Stop,
    options: LoadOptions | None = None,
) -> ShardStats | None:
    """Make what is missing of a shard, and time the start from that of the process.

    Raises what `generate` raises.
    """
    clock = StartClock.of_process()
    require_libraries()
    store = open_store(uri)
    plan = load_plan(store)
    require_shard(store, plan, number)
    with Startup.begin(plan, clock, options) as startup:
        with clock.phase("imports"):
            from imagekiln.steps.generate.step import generate
        return generate(uri, number, progress, stop, startup)
