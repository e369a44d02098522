"""What share of encoding and writing is hidden behind the device.

    python tests/bench/hidden.py --images 2048 --side 128

The generate step encodes and writes pictures of noise, the worst case. In the first run they cost
the device nothing, which measures encoding and writing together. In the second, a stand-in for a
device, which like a GPU needs no CPU, takes 1.2 times as long. The time by which the step then
outlasts the device was not hidden.
"""

import sys
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.generate.step import generate_shard
from imagekiln.steps.job.execution import BatchSettings, PartSettings, ShardSettings
from imagekiln.steps.job.job import Job, ModelSettings
from imagekiln.steps.job.rows import RowDefaults
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.runs.stats import StageSeconds
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests.bench.measure import scratch_folder
from tests.devices import StandIn

SLOWER = 1.2


def step(folder: Path, images: int, side: int, seconds: float) -> tuple[StageSeconds, int]:
    """Stage times of a generate step whose device takes `seconds` a batch, and its batch count."""
    folder.mkdir()
    pq.write_table(
        pa.table({"prompt": ["noise"] * images, "seed": list(range(images))}),
        folder / "prompts.parquet",
    )
    run = make_plan(
        Job(
            name="hidden",
            prompts=str(folder / "prompts.parquet"),
            output=str(folder / "out"),
            model=ModelSettings(id="bundled:shapes", dtype="float32"),
            defaults=RowDefaults(width=side, height=side),
            batch=BatchSettings(images=8),
            part=PartSettings(images=32),
            shard=ShardSettings(images=images),
        )
    )
    device = StandIn(seconds, side)
    stats = generate_shard(open_store(run.uri), run.plan, 0, lambda: device, NoProgress(), Stop())
    if stats is None or stats.images != images:
        raise SystemExit("not all images were made")
    return stats.seconds, device.batches


@click.command()
@click.option("--images", default=2048, show_default=True, help="Images in the job.")
@click.option("--side", default=128, show_default=True, help="Their width and height, in pixels.")
def main(images: int, side: int) -> None:
    """Print what encoding and writing take, and what share of it the device waited for."""
    with scratch_folder() as folder:
        alone, batches = step(folder / "alone", images, side, 0.0)
        work = alone.encode + alone.write
        slowed, _ = step(folder / "beside", images, side, SLOWER * work / batches)
    visible = slowed.total - slowed.load - SLOWER * work
    click.echo(
        f"{images} PNGs of {side} x {side}: "
        f"encoding {alone.encode:.2f} s, writing {alone.write:.2f} s"
    )
    click.echo(
        f"beside a device that takes {SLOWER * work:.2f} s: "
        f"{visible:.3f} s more, so {1 - visible / work:.1%} is hidden"
    )


if __name__ == "__main__":
    main()
