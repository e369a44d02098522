"""The name of every object in a run's folder. Nothing else makes keys, and nothing lists them."""

from pathlib import PurePosixPath

PLAN = "plan.json"
REJECTED = "rejected.parquet"
DUPLICATES = "duplicates.parquet"
SUMMARY = "summary.json"
REPORT = "report/index.html"
SUCCESS = "_SUCCESS"
CARD = "README.md"


def shard(number: int) -> str:
    """The image rows of one shard, in the order they are generated."""
    return f"shards/{number:05d}.parquet"


def part(shard_number: int, part_number: int) -> str:
    """One part: the images of a slice of a shard."""
    return f"images/{shard_number:05d}-{part_number:04d}.parquet"


def index(shard_number: int, part_number: int) -> str:
    """What a part says of its images, where their bytes lie in other objects: the part's commit."""
    return f"index/{shard_number:05d}-{part_number:04d}.parquet"


def tar(index: str) -> str:
    """The images of the part with this index, all in one object."""
    return f"images/{PurePosixPath(index).stem}.tar"


def image(index: str, place: int, suffix: str) -> str:
    """One image of the part with this index, or, by its suffix, what is told of it. No text of the user's is in it."""
    shard_number, part_number = PurePosixPath(index).stem.split("-")
    return f"images/{shard_number}/{part_number}-{place:05d}{suffix}"


def listing(folder: str) -> str:
    """What is told of the images in a folder, by their names there. The name is Hugging Face's."""
    return f"{folder}/metadata.parquet"


def stats(shard_number: int) -> str:
    """What the shard took."""
    return f"stats/{shard_number:05d}.json"


def manifest(shard_number: int) -> str:
    """One row for each planned image of the shard."""
    return f"manifest/{shard_number:05d}.parquet"


def thumbnail(number: int) -> str:
    """A picture of the contact sheet."""
    return f"report/thumbnails/{number:04d}.jpg"
