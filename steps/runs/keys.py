"""The key of every object in a run's folder.

Keys are made nowhere else, and no user text is part of one.
"""

import re
from pathlib import PurePosixPath

REGISTRY_FOLDER = "_runs"  # of an output, and beside its runs
REWRITES_FOLDER = "_rewritten"  # likewise
PROMPT_LISTS_FOLDER = "_prompts"  # likewise
PLAN_KEY = "plan.json"
EXPORT_KEY = "export.json"  # of an export, which is no run
EXISTING_RUNS_KEY = "looked-at.json"
REJECTED_KEY = "rejected.parquet"
DUPLICATES_KEY = "duplicates.parquet"
SUMMARY_KEY = "summary.json"
TERMS_KEY = "terms.json"  # prices and budget, as submitted last
PRICES_KEY = "prices.json"  # those given to `aggregate` since
RATE_KEY = "rate.json"  # what a finished run took, for estimates of the next
ESTIMATE_KEY = "estimate.json"  # what planning expected the run to take
REPORT_KEY = "report/index.html"
SUCCESS_KEY = "_SUCCESS"
SUSPENDED_KEY = "_SUSPENDED"  # of a run that was finished, while what it holds is replaced
SUPERSEDED_KEY = "_SUPERSEDED"  # of a round: what it still lacks is left to later ones
IMAGES_PREFIX = "images/"
CARD_KEY = "README.md"  # of a run, and of an output
EMPTY_DATASET_KEY = "empty.parquet"  # what the card of a run without images names
DIFF_PAGE_KEY = "index.html"  # in the folder that `diff` writes
SHARDS_FOLDER = "shards"
TURNS_FOLDER = "turns"
REPORT_FOLDER = "report"
PREVIEW_FOLDER = "preview"  # of a run: the page of its first shard alone
IMAGE_ID_PATTERN = "^[0-9a-f]{32}$"
SHA256_PATTERN = "^[0-9a-f]{64}$"
# The objects with images, by which `gc` finds those that no plan and no manifest names: of a part,
# with its shard and its number, and of one image, with its shard.
PART_IMAGES_KEY_PATTERN = re.compile(r"images/(\d{5,})-(\d{4,})\.(?:parquet|tar)")
IMAGE_KEY_PATTERN = re.compile(r"images/(\d{5,})/\d{4,}-\d{5,}\.(?:png|jpg|jpeg|webp)")
# All objects of a run, which `gc` removes, and no others. A file whose writing was interrupted lies
# beside its object.
RUN_KEY_PATTERN = re.compile(
    r"""(?:retry-[1-9][0-9]*/)?
    (?: (?:plan|looked-at|summary|terms|prices|rate|estimate)\.json
      | _SUCCESS | _SUSPENDED | _SUPERSEDED
      | README\.md
      | (?:rejected|duplicates|empty)\.parquet
      | (?:shards|manifest|image-ids)/\d{5,}\.parquet
      | images/\d{5,}-\d{4,}\.(?:parquet|tar)
      | images/\d{5,}/\d{4,}-\d{5,}\.(?:png|jpg|jpeg|webp|json)
      | images/\d{5,}/metadata\.parquet
      | index/\d{5,}-\d{4,}\.parquet
      | inputs/[0-9a-f]{64}
      | work/\d{5,}(?:-\d{4,})?
      | stats/\d{5,}\.json
      | forgotten/\d{6,}\.parquet
      | (?:account|exported|turns)/\d{6,}\.json
      | (?:preview/)?summary\.json
      | (?:preview/)?report/(?:index\.html|[a-z-]+\.png)
      | (?:preview/)?report/thumbnails/\d{4,}\.jpg
      | (?:preview/)?report/images/[0-9a-f]{32}\.(?:png|jpg|jpeg|webp)
      | (?:[a-z0-9-]+/){0,3}\.writing-[a-z0-9_]{8}
    )""",
    re.ASCII | re.VERBOSE,
)


# Likewise of what a language model made of prompts, which `gc` removes in this order: lists freeze
# what the texts are of, and the model that there are any.
REWRITE_KEY_PATTERNS = tuple(
    re.compile(rf"{REWRITES_FOLDER}/[0-9a-f]{{16}}/{name}", re.ASCII)
    for name in (
        r"texts/(?:\d{5,}-\d{4,}\.parquet|\.writing-[a-z0-9_]{8})",
        r"prompts/(?:\d{5,}\.parquet|\.writing-[a-z0-9_]{8})",
        r"(?:rewrite\.json|\.writing-[a-z0-9_]{8})",
    )
)


def shard_key(number: int) -> str:
    """The image rows of one shard, in the order in which they are drawn."""
    return f"{SHARDS_FOLDER}/{number:05d}.parquet"


def part_key(shard_number: int, part_number: int) -> str:
    """A part that holds its images: those of one slice of a shard."""
    return f"images/{shard_number:05d}-{part_number:04d}.parquet"


def index_key(shard_number: int, part_number: int) -> str:
    """The index of a part whose images lie in other objects. It commits the part."""
    return f"index/{shard_number:05d}-{part_number:04d}.parquet"


def tar_key(commit_key: str) -> str:
    """The tar with the images of the part that is committed by this key."""
    return f"images/{PurePosixPath(commit_key).stem}.tar"


def image_key(commit_key: str, index_in_part: int, suffix: str) -> str:
    """The file, or the sidecar, of one image of the part that is committed by this key."""
    part = PurePosixPath(commit_key).stem
    shard_number, part_number = part.split("-")
    return f"images/{shard_number}/{part_number}-{index_in_part:05d}{suffix}"


def folder_metadata_key(folder: str) -> str:
    """The table of the images in a folder, by file name. Hugging Face's `imagefolder` reads it."""
    return f"{folder}/metadata.parquet"


def input_image_key(sha256: str) -> str:
    """An input image, as it came, named by the SHA-256 of its bytes."""
    return f"inputs/{sha256}"


def shard_work_key(shard_number: int) -> str:
    """Whether a process has begun the shard, and whether it has finished it."""
    return f"work/{shard_number:05d}"


def part_work_key(commit_key: str) -> str:
    """Which process makes the part that is committed by this key, for another one."""
    return f"work/{PurePosixPath(commit_key).stem}"


def stats_key(shard_number: int) -> str:
    """The statistics of the shard: seconds by stage, memory, versions."""
    return f"stats/{shard_number:05d}.json"


def account_key(number: int) -> str:
    """An entry in the account of what a run has spent, numbered from 0."""
    return f"account/{number:06d}.json"


def turn_key(number: int) -> str:
    """An entry on a process that began to replace objects of a run, numbered from 0."""
    return f"{TURNS_FOLDER}/{number:06d}.json"


def forgotten_key(number: int) -> str:
    """A table of images that were taken down, numbered from 0: of a run, or of an export."""
    return f"forgotten/{number:06d}.parquet"


def manifest_key(shard_number: int) -> str:
    """One row for each planned image of the shard."""
    return f"manifest/{shard_number:05d}.parquet"


def image_ids_key(number: int) -> str:
    """A chunk of the index of the run's images that are ok."""
    return f"image-ids/{number:05d}.parquet"


def thumbnail_key(number: int) -> str:
    """A thumbnail of the report."""
    return f"report/thumbnails/{number:04d}.jpg"


def report_image_key(image_id: str, suffix: str) -> str:
    """A copy of an image of which the report has a thumbnail."""
    return f"report/images/{image_id}{suffix}"


def plot_key(name: str, *, dark: bool = False) -> str:
    """A plot of the report, for a light or a dark background."""
    suffix = "-dark" if dark else ""
    return f"report/{name}{suffix}.png"


def diff_image_key(number: int, side: str) -> str:
    """A thumbnail on the page that shows two runs side by side."""
    return f"pairs/{number:03d}-{side}.jpg"


def parse_part_key(part: str) -> tuple[int, int] | None:
    """The round and the shard of a part, from its key in the manifest; None for any other text."""
    match = re.match(r"(?:retry-(\d+)/)?(?:images|index)/(\d+)[-/]", part)
    if match is None:
        return None
    round_number, shard_number = match.groups()
    return int(round_number or 0), int(shard_number)


def round_folder(number: int) -> str:
    """The folder of a round of `retry`, which has a plan, shards and parts of its own."""
    return f"retry-{number}"


def registry_key(number: int) -> str:
    """An entry in the log of successful runs, under the output rather than the run."""
    return f"{REGISTRY_FOLDER}/{number:06d}.json"


def registry_block_key(number: int) -> str:
    """A hundred entries of that log in one object, numbered from 0."""
    return f"{REGISTRY_FOLDER}/block-{number:04d}.json"


def prompt_list_key(digest: str) -> str:
    """Under the output, the prompts of a submitted job that stood in the job itself."""
    return f"{PROMPT_LISTS_FOLDER}/{digest}.parquet"


def rewrite_key(digest: str, name: str) -> str:
    """An object of what a language model made of prompts, by a digest of its settings."""
    return f"{REWRITES_FOLDER}/{digest}/{name}"
