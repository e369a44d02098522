"""Packs what a GPU machine without a network lacks: wheels, unpacked, in one archive.

    python -m pip download --no-deps --python-version 3.12 ... --dest wheels duckdb diffusers ...
    python -m build --wheel --outdir wheels .
    python -m tests.bench.gpu.archive wheels site.tar.xz --tree .

There, in the checkout:

    mkdir site && tar xJf site.tar.xz -C site
    PYTHONPATH=site:$PWD python3 -m tests.bench.gpu --call 1
"""

import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import click

from tests.bench.measure import scratch_folder

MEBIBYTE = 2**20
PRESET: Final = 3  # of xz: higher ones take minutes, and save 1 %
USELESS_SUFFIXES = {".pyi", ".h", ".hpp", ".a"}


def pack_wheels(wheels: Path, archive: Path) -> int:
    """Unpack every wheel of a folder into one archive; returns its bytes."""
    with scratch_folder() as site:
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as content:
                names = [name for name in content.namelist() if is_needed(name)]
                for name in names:
                    content.extract(name, site)
        with tarfile.open(archive, mode="w:xz", preset=PRESET) as packed:
            for path in sorted(site.iterdir()):
                packed.add(path, path.name)
    return archive.stat().st_size


def is_needed(name: str) -> bool:
    """Whether a file of a wheel is needed to run it."""
    return Path(name).suffix not in USELESS_SUFFIXES and "/tests/" not in name


def tree_bytes(tree: Path) -> int:
    """The bytes of all files of a checkout that Git tracks."""
    command = ["git", "-C", str(tree), "ls-files", "-z"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    files = [tree / name for name in listing.split("\0") if name]
    return sum(file.stat().st_size for file in files if file.is_file())


@click.command()
@click.argument("wheels", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The checkout that travels with it.",
)
@click.option("--limit", default=64, show_default=True, help="MiB that may travel.")
def main(wheels: Path, archive: Path, tree: Path | None, limit: int) -> None:
    """Pack the WHEELS of a folder into an ARCHIVE; fails above the limit."""
    packed = pack_wheels(wheels, archive)
    others = tree_bytes(tree) if tree else 0
    total = (packed + others) / MEBIBYTE
    click.echo(
        f"{archive}: {packed / MEBIBYTE:.1f} MiB; the checkout {others / MEBIBYTE:.1f} MiB; "
        f"{total:.1f} of {limit} MiB"
    )
    if total > limit:
        raise click.ClickException("too large to travel: leave out wheels that are there already")


if __name__ == "__main__":
    main()
