"""The name of every object in a run's folder. Nothing else makes keys, and nothing lists them."""

PLAN = "plan.json"
REJECTED = "rejected.parquet"
DUPLICATES = "duplicates.parquet"
SUMMARY = "summary.json"
REPORT = "report/index.html"
SUCCESS = "_SUCCESS"
PLOTS = ("throughput", "bytes", "prompts")


def shard(number: int) -> str:
    """The image rows of one shard, in the order they are generated."""
    return f"shards/{number:05d}.parquet"


def part(shard_number: int, part_number: int) -> str:
    """One part: the images of a slice of a shard."""
    return f"images/{shard_number:05d}-{part_number:04d}.parquet"


def stats(shard_number: int) -> str:
    """What the shard took."""
    return f"stats/{shard_number:05d}.json"


def manifest(shard_number: int) -> str:
    """One row for each planned image of the shard."""
    return f"manifest/{shard_number:05d}.parquet"


def thumbnail(number: int) -> str:
    """A picture of the contact sheet."""
    return f"report/thumbnails/{number:04d}.jpg"


def plot(name: str, *, dark: bool = False) -> str:
    """A plot of the report, for a light ground or a dark one."""
    return f"report/{name}{'-dark' if dark else ''}.png"


def registered_run(number: int) -> str:
    """An entry in the log of successful runs, below the output and not the run."""
    return f"_runs/{number:06d}.json"
