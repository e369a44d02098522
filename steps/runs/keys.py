"""The name of every object in a run's folder. Nothing else makes keys, and only `gc` lists them."""

import re
from pathlib import PurePosixPath

PLAN_KEY = "plan.json"
EXISTING_RUNS_KEY = "looked-at.json"
REJECTED_KEY = "rejected.parquet"
DUPLICATES_KEY = "duplicates.parquet"
SUMMARY_KEY = "summary.json"
REPORT_KEY = "report/index.html"
SUCCESS_KEY = "_SUCCESS"
IMAGES_PREFIX = "images/"
CARD_KEY = "README.md"
DIFF_PAGE_KEY = "index.html"  # in a folder of its own
PLOT_NAMES = ("throughput", "time", "bytes", "prompts")


def shard_key(number: int) -> str:
    """The image rows of one shard, in the order they are generated."""
    return f"shards/{number:05d}.parquet"


def part_key(shard_number: int, part_number: int) -> str:
    """One part: the images of a slice of a shard."""
    return f"images/{shard_number:05d}-{part_number:04d}.parquet"


def index_key(shard_number: int, part_number: int) -> str:
    """What a part says of its images, where their bytes lie in other objects: the part's commit."""
    return f"index/{shard_number:05d}-{part_number:04d}.parquet"


def tar_key(index: str) -> str:
    """The images of the part with this index, all in one object."""
    return f"images/{PurePosixPath(index).stem}.tar"


def image_key(index: str, place: int, suffix: str) -> str:
    """One image of the part with this index, or, by its suffix, what is told of it. No text of the user's is in it."""
    shard_number, part_number = PurePosixPath(index).stem.split("-")
    return f"images/{shard_number}/{part_number}-{place:05d}{suffix}"


def folder_metadata_key(folder: str) -> str:
    """What is told of the images in a folder, by their names there. The name is Hugging Face's."""
    return f"{folder}/metadata.parquet"


def input_image_key(sha256: str) -> str:
    """A picture that conditions images, as it came: named by the SHA-256 of its bytes."""
    return f"inputs/{sha256}"


def stats_key(shard_number: int) -> str:
    """What the shard took."""
    return f"stats/{shard_number:05d}.json"


def manifest_key(shard_number: int) -> str:
    """One row for each planned image of the shard."""
    return f"manifest/{shard_number:05d}.parquet"


def image_ids_key(number: int) -> str:
    """A piece of the index of the run's images that are ok."""
    return f"image-ids/{number:05d}.parquet"


def thumbnail_key(number: int) -> str:
    """A picture of the contact sheet."""
    return f"report/thumbnails/{number:04d}.jpg"


def plot_key(name: str, *, dark: bool = False) -> str:
    """A plot of the report, for a light ground or a dark one."""
    return f"report/{name}{'-dark' if dark else ''}.png"


def diff_image_key(place: int, which: str) -> str:
    """A picture of the page of two runs side by side."""
    return f"pairs/{place:03d}-{which}.jpg"


def parse_part_key(part: str) -> tuple[int, int] | None:
    """The round and the shard that made a part, as the manifest names it; None where it is no name of ours."""
    found = re.match(r"(?:retry-(\d+)/)?(?:images|index)/(\d+)[-/]", part)
    return None if found is None else (int(found[1] or 0), int(found[2]))


def round_folder(number: int) -> str:
    """What `retry` made again the first, second... time: a folder that has a plan, shards and parts of its own."""
    return f"retry-{number}"


def registry_key(number: int) -> str:
    """An entry in the log of successful runs, below the output and not the run."""
    return f"_runs/{number:06d}.json"


def compiled_code_key(digest: str) -> str:
    """Compiled code, by a digest of what it is made for: below the output, for every run there."""
    return f"_compiled/{digest}.bin"
