"""Keys of all objects in a run's folder.

No other module builds keys, and keys contain no user input.
"""

import re

REGISTRY_FOLDER = "_runs"  # in an output, beside its runs
REWRITES_FOLDER = "_rewritten"  # in the same place
PROMPT_LISTS_FOLDER = "_prompts"  # in the same place
PLAN_KEY = "plan.json"
SUCCESS_KEY = "_SUCCESS"  # created after the first commit of a finished run; never removed
CARD_KEY = "README.md"
REPORT_KEY = "report/index.html"
REPORT_FOLDER = "report"
PREVIEW_FOLDER = "preview"  # the page of a run's first shard alone
DIFF_PAGE_KEY = "index.html"  # in the folder that `diff` writes
ATTEMPTS_FOLDER = "attempts"
COMMITS_FOLDER = "commits"
IMAGES_FOLDER = "images"
DIGEST_DIGITS = 32  # of the SHA-256 of an object, in its name
IMAGE_ID_PATTERN = "^[0-9a-f]{32}$"
SHA256_PATTERN = "^[0-9a-f]{64}$"
# Names in plans and commits, which may not be trusted.
METADATA_KEY_PATTERN = r"^(?:manifest/[0-9]{5,9}-|forgotten/)[0-9a-f]{32}\.parquet$"
PART_KEY_PATTERN = (
    r"^images/(?:r([0-9]{1,9})-)?([0-9]{5,9})-([0-9]{4,9})(?:\.f[0-9]{1,9})?\.parquet$"
)
ATTEMPT_KEY_PATTERN = re.compile(r"attempts/(?:r(\d+)-)?(\d{5,})-[0-9a-f]{32}\.json", re.ASCII)
# All objects of a run. `gc` removes these and nothing else. A file whose writing was interrupted
# lies beside its object.
RUN_KEY_PATTERN = re.compile(
    r"""(?:
      plan\.json | _SUCCESS | README\.md | empty\.parquet
      | (?:shards/(?:r\d+-)?|manifest/)\d{5,}-[0-9a-f]{32}\.parquet
      | (?:rejected-|duplicates-|forgotten/)[0-9a-f]{32}\.parquet
      | images/(?:r\d+-)?\d{5,}-\d{4,}(?:\.f\d+)?\.parquet
      | inputs/[0-9a-f]{64}
      | attempts/(?:r\d+-)?\d{5,}-[0-9a-f]{32}\.json
      | commits/\d{6,}\.json
      | (?:preview/)?report/(?:index\.html|[a-z-]+\.png)
      | (?:preview/)?report/thumbnails/\d{4,}\.jpg
      | (?:preview/)?report/images/[0-9a-f]{32}\.(?:png|jpg|jpeg|webp)
      | (?:[a-z0-9-]+/){0,3}\.writing-[a-z0-9_]{8}
    )""",
    re.ASCII | re.VERBOSE,
)


def commit_key(number: int) -> str:
    """Return the key of a commit."""
    return f"{COMMITS_FOLDER}/{number:06d}.json"


def shard_key(number: int, sha256: str, retry: int = 0) -> str:
    """Return the key of a shard's image rows, which are in generation order."""
    return f"shards/{_of_retry(retry)}{number:05d}-{_digest(sha256)}.parquet"


def rejected_key(sha256: str) -> str:
    """Return the key of the rejected input rows."""
    return f"rejected-{_digest(sha256)}.parquet"


def duplicates_key(sha256: str) -> str:
    """Return the key of the images that are planned once for several rows."""
    return f"duplicates-{_digest(sha256)}.parquet"


def part_key(shard_number: int, part_number: int, retry: int = 0) -> str:
    """Return the key of a part: the images of one slice of a shard, of the run or of a retry."""
    return f"{IMAGES_FOLDER}/{_of_retry(retry)}{shard_number:05d}-{part_number:04d}.parquet"


def reduced_part_key(key: str, takedown: int) -> str:
    """Return the key of the part that replaces another, without the images taken down."""
    stem = planned_part_key(key).removesuffix(".parquet")
    return f"{stem}.f{takedown}.parquet"


def planned_part_key(key: str) -> str:
    """Return the key under which a part was planned, also for a part that replaces it."""
    return re.sub(r"\.f\d+\.parquet$", ".parquet", key)


def _of_retry(retry: int) -> str:
    return f"r{retry}-" if retry else ""


def _digest(sha256: str) -> str:
    return sha256[:DIGEST_DIGITS]


def input_image_key(sha256: str) -> str:
    """Return the key of an unchanged input image, named by the SHA-256 of its bytes."""
    return f"inputs/{sha256}"


def input_image_digests(cell: str | None) -> list[str]:
    """Split a cell of input images into the SHA-256 of each: one, several with commas, or none."""
    return cell.split(",") if cell else []


def attempt_key(shard_number: int, attempt: str, retry: int = 0) -> str:
    """Return the key of one process's attempt at a shard."""
    return f"{ATTEMPTS_FOLDER}/{_of_retry(retry)}{shard_number:05d}-{attempt}.json"


def manifest_key(shard_number: int, sha256: str) -> str:
    """Return the key of a shard's manifest, which has one row for each planned image."""
    return f"manifest/{shard_number:05d}-{_digest(sha256)}.parquet"


def forgotten_key(sha256: str) -> str:
    """Return the key of the ids of images that were taken down."""
    return f"forgotten/{_digest(sha256)}.parquet"


def thumbnail_key(number: int) -> str:
    """Return the key of a thumbnail in the report."""
    return f"report/thumbnails/{number:04d}.jpg"


def report_image_key(image_id: str, suffix: str) -> str:
    """Return the key of the full-size copy of an image in the report."""
    return f"report/images/{image_id}{suffix}"


def diff_image_key(number: int, side: str) -> str:
    """Return the key of a thumbnail on the page that compares two runs."""
    return f"pairs/{number:03d}-{side}.jpg"


def parse_part_key(part: str) -> tuple[int, int] | None:
    """Parse the retry and the shard from a part's key; None for any other string."""
    match = re.match(PART_KEY_PATTERN, part)
    if match is None:
        return None
    retry = int(match[1] or 0)
    return retry, int(match[2])


def registry_key(number: int) -> str:
    """Return the key of an entry in the output's log of successful runs."""
    return f"{REGISTRY_FOLDER}/{number:06d}.json"


def prompt_list_key(digest: str) -> str:
    """Return the key, in the output, of prompts that a submitted job contained inline."""
    return f"{PROMPT_LISTS_FOLDER}/{digest}.parquet"


def rewrite_key(digest: str, name: str) -> str:
    """Return the key of an object with rewritten prompts, by a digest of the rewriting settings."""
    return f"{REWRITES_FOLDER}/{digest}/{name}"
