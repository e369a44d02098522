"""The start of a pod: from exec to the first step, by phase.

    python tests/bench/cold.py --model sdxl --models /tmp/models --drop-caches
    python tests/bench/cold.py --model sdxl --models /tmp/models --peer /tmp/before/build/pkg

Every round starts one process, and one of the peer: another state of the package, from the folder
that holds its `imagekiln`. Wall and CPU seconds are those of the whole
process, which draws one image in one step. `--drop-caches` needs root, and empties the system's
page cache before each process, as on a node that has never read the model.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

sys.path.append(str(Path(__file__).parents[2]))

from tests.bench import random_models
from tests.bench.jobs import plan_work
from tests.bench.measure import machine, scratch_folder, table
from tests.bench.processes import default_device, in_child
from tests.bench.starts import ShardProcess, Start, generate_arguments
from tests.bench.work import Work

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
)
HEADER = ("package", "wall, s", "CPU, s", *(name.replace("_", " ") for name in PHASES))


@dataclass(frozen=True, slots=True)
class Contender:
    """A command that makes the shard: arguments of Python, and variables of its environment."""

    name: str
    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


def make_contenders(uri: str, peer: str | None) -> list[Contender]:
    """Return this package, and the peer, if there is one."""
    arguments = generate_arguments(uri)
    contenders = [Contender("this", arguments)]
    if peer is not None:
        contenders.append(Contender("peer", arguments, {"PYTHONPATH": peer}))
    return contenders


def measure_contender(uri: str, contender: Contender) -> Start:
    """Run the contender, and remove what it made, so that the next one makes it again."""
    start = ShardProcess(uri, contender.arguments, contender.environment).wait()
    for name in ("images", "stats"):
        for file in Path(uri, name).glob("*"):
            file.unlink()
    return start


def empty_page_cache() -> None:
    """Have the system forget the content of all files."""
    os.sync()
    DROP_CACHES.write_text("1")


def cold_work(model: str, folder: Path, device: str, side: int) -> Work:
    """One image in one step, compiled where jobs compile by default."""
    return Work(
        model=in_child(random_models.local, model, folder),
        images=1,
        batch=1,
        side=side,
        steps=1,
        guidance=1.0,
        device=device,
        dtype="bfloat16",
        compile=device == "cuda",
    )


def table_row(name: str, start: Start) -> tuple[str, ...]:
    """The cells of a start; a phase that was not timed is a dash."""
    phases = [f"{start.phases[phase]:.1f}" if start.phases else "-" for phase in PHASES]
    return (name, f"{start.wall:.1f}", f"{start.cpu:.1f}", *phases)


@click.command()
@click.option("--model", default="tiny-sdxl", show_default=True)
@click.option("--models", type=click.Path(path_type=Path), default="models", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="CUDA where there is a GPU.")
@click.option("--side", default=64, show_default=True, help="Pixels.")
@click.option("--rounds", default=1, show_default=True)
@click.option("--peer", help="The folder that holds another state of the package.")
@click.option("--drop-caches", is_flag=True)
def main(
    model: str,
    models: Path,
    device: str | None,
    side: int,
    rounds: int,
    peer: str | None,
    drop_caches: bool,
) -> None:
    """Start a process for each package, round after round."""
    click.echo(machine())
    work = cold_work(model, models.resolve(), device or default_device(), side)
    rows = []
    with scratch_folder() as folder:
        uri = in_child(plan_work, work, folder)
        for contender in make_contenders(uri, peer) * rounds:
            if drop_caches:
                empty_page_cache()
            start = measure_contender(uri, contender)
            rows.append(table_row(contender.name, start))
            click.echo(f"# {' '.join(rows[-1])}")
    click.echo(table(HEADER, rows))


if __name__ == "__main__":
    main()
