"""The start of a pod: from exec to the first step, by phase, as a process of its own.

    python tests/bench/cold.py --model sdxl --models /tmp/models --drop-caches
    python tests/bench/cold.py --model sdxl --models /tmp/models --peer /tmp/before/build/pkg

Every round starts one process for each way of loading, and one of the peer: another state of the
package, from the folder that holds its `imagekiln`. Wall and CPU seconds are those of the whole
process, which draws one image in one step. `--drop-caches` needs root, and empties the system's
page cache before each process, as on a node that has never read the model.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import click

sys.path.append(str(Path(__file__).parents[2]))

from imagekiln.steps.generate.diffusion.startup import LoadOptions
from tests.bench.measure import machine, table

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
PHASES = (
    "imports",
    "load",
    "device",
    "hash_wait",
    "code",
    "first_step",
    "total",
    "hash",
    "read_ahead",
)
WAYS = {
    "as pods do": LoadOptions(),
    "read, not mapped": LoadOptions(mmap=False),
    "straight to the device": LoadOptions(direct=True),
}
THIS_FILE = Path(__file__).resolve()


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of one process, and of the phases of its start where it timed them."""

    way: str
    wall: float
    cpu: float
    phases: dict[str, float] = field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        """The result as a row of the table."""
        phases = [f"{self.phases[name]:.1f}" if self.phases else "-" for name in PHASES]
        return (self.way, f"{self.wall:.1f}", f"{self.cpu:.1f}", *phases)


def start(way: str, command: list[str], environment: dict[str, str], drop_caches: bool) -> Result:
    """Run the command and read what it took. Raises CalledProcessError where it fails."""
    if drop_caches:
        os.sync()
        DROP_CACHES.write_text("1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    starts = [line["seconds"] for line in lines if line["event"] == "start"]
    return Result(way, wall, cpu, starts[0] if starts else {})


def plan(folder: Path, model: str, device: str, side: int) -> str:
    """Plan a run of one image in a folder; returns the run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"prompt": ["a red circle"]}), folder / "prompts.parquet")
    job = {
        "name": "cold",
        "prompts": str(folder / "prompts.parquet"),
        "output": str(folder / "out"),
        "run_id": "run",
        "model": {"id": model, "dtype": "bfloat16"},
        "defaults": {"steps": 1, "guidance": 1.0, "width": side, "height": side},
        "batch": {"images": 1},
        "device": device,
    }
    (folder / "job.yaml").write_text(json.dumps(job))
    command = [sys.executable, "-m", "imagekiln", "plan", str(folder / "job.yaml")]
    subprocess.run(command, check=True, capture_output=True)
    return str(folder / "out" / "run")


def forget_images(run: str) -> None:
    """Remove what a process made, so that the next one has it to do again."""
    for name in ("images", "stats"):
        for file in Path(run, name).glob("*"):
            file.unlink()


@click.group(invoke_without_command=True)
@click.option("--model", default="tiny-sdxl", show_default=True)
@click.option("--models", type=click.Path(path_type=Path), default="models")
@click.option("--device", default="auto", show_default=True)
@click.option("--side", default=64, show_default=True, help="Pixels.")
@click.option("--rounds", default=1, show_default=True)
@click.option("--way", "ways", multiple=True, type=click.Choice(tuple(WAYS)))
@click.option("--peer", help="The folder that holds another state of the package.")
@click.option("--drop-caches", is_flag=True)
@click.pass_context
def main(
    ctx: click.Context,
    model: str,
    models: Path,
    device: str,
    side: int,
    rounds: int,
    ways: tuple[str, ...],
    peer: str | None,
    drop_caches: bool,
) -> None:
    """Start a process for each way of loading, round after round."""
    if ctx.invoked_subcommand:
        return
    from tests.bench import random_models

    click.echo(machine())
    results = []
    with tempfile.TemporaryDirectory(prefix="imagekiln-bench-") as folder:
        run = plan(Path(folder), random_models.local(model, models), device, side)
        for _ in range(rounds):
            contenders = [(way, [str(THIS_FILE), "child", run, way]) for way in ways or WAYS]
            if peer:
                contenders.append(("peer", ["-m", "imagekiln", "generate", run, "--shard", "0"]))
            for way, arguments in contenders:
                environment = dict(os.environ)
                if way == "peer" and peer:
                    environment["PYTHONPATH"] = peer
                command = [sys.executable, *arguments]
                results.append(start(way, command, environment, drop_caches))
                click.echo(f"# {' '.join(results[-1].cells())}")
                forget_images(run)
    header = ("way", "wall, s", "CPU, s", *(name.replace("_", " ") for name in PHASES))
    click.echo(table(header, [result.cells() for result in results]))


@main.command()
@click.argument("run")
@click.argument("way", type=click.Choice(tuple(WAYS)))
def child(run: str, way: str) -> None:
    """Generate the first shard of the run, as `imagekiln generate` does."""
    from imagekiln.steps.generate.start import generate
    from imagekiln.steps.runs.start_times import StartClock
    from imagekiln.steps.runtime.progress import JsonLinesProgress
    from imagekiln.steps.runtime.signals import Stop
    from imagekiln.workflows.cli.terminal import silence_libraries

    silence_libraries()
    progress = JsonLinesProgress(sys.stderr, None)
    clock = StartClock.of_process()
    generate(run, 0, progress, Stop(), process_clock=clock, options=WAYS[way])


if __name__ == "__main__":
    main()
