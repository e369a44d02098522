"""The key of every object of an export, and the folders that a column's values become."""

import re
from urllib.parse import quote

from imagekiln.steps.errors import BadInput, cut_name

MANIFEST_FOLDER = "manifest"
DATA_FOLDER = "data"
# A hub takes 10,000 files in a folder, and lists long ones slowly.
MAX_FOLDER_FILES = 10_000
SUBFOLDER_FILES = 1000
MAX_FOLDER_CHARS = 240  # that a disk takes, and some
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # as Hive and its readers call it
DATA_KEY_PATTERN = re.compile(
    r"data/(?:[A-Za-z0-9%._~-]+=[A-Za-z0-9%._~-]*/)?(?:[0-9]{3,}/)?[0-9]{5,}\.(?:parquet|tar)"
)


def file_rows_key(number: int, sha256: str) -> str:
    """What the plan puts into one file. Its name says its content: two plans share no object."""
    return f"_plan/{number:06d}-{sha256[:16]}.parquet"


def success_marker(images: int) -> bytes:
    """What `_SUCCESS` says of an export with so many images."""
    return f"{images} images\n".encode()


def manifest_chunk_key(number: int) -> str:
    """A piece of the manifest: the images of consecutive files."""
    return f"{MANIFEST_FOLDER}/{number:05d}.parquet"


def data_key(partition: str, number: int, count: int, suffix: str) -> str:
    """The file of this number among the `count` files of a partition, which is "" for no other."""
    folders = [DATA_FOLDER]
    if partition:
        folders.append(partition)
    if count > MAX_FOLDER_FILES:
        folders.append(f"{number // SUBFOLDER_FILES:03d}")
    return "/".join([*folders, f"{number:05d}{suffix}"])


def partition_folder(column: str, value: object) -> str:
    """The folder of one value of a column, in the layout of Hive: any text is one plain name.

    Raises BadInput where the name would be too long.
    """
    text = NULL_PARTITION if value is None else quote(str(value), safe="")
    folder = f"{quote(column, safe='')}={text}"
    if len(folder) > MAX_FOLDER_CHARS:
        raise BadInput(
            f"column {column!r}: {cut_name(str(value))!r} is too long for a folder's name. "
            "Choose another column to partition by."
        )
    return folder
