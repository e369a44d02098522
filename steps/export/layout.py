"""The key of every object of an export, and the folders that a column's values become.

A name that has images, or a row of each, begins with the number of the commit that announced it, so
that it is never used again. Data files have the digest of their rows as well: of two exports that
are pushed to one hub, those of the same name have the same images.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote

from imagekiln.steps.errors import BadInput, cut_name
from imagekiln.steps.job.output import ExportFormat
from imagekiln.steps.runs.keys import DIGEST_DIGITS

MANIFEST_FOLDER = "manifest"
DATA_FOLDER = "data"
SUBFOLDER_FILES = 1000  # a hub takes 10,000 in a folder, and lists long ones slowly
NAME_DIGITS = 8  # of a digest
MAX_FOLDER_CHARS = 240  # that a disk takes, and some
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # as Hive and its readers call it
FOLDER_TABLE = "/metadata.parquet"  # of a folder of pictures
FILE_SUFFIXES: Mapping[ExportFormat, str] = {
    "parquet": ".parquet",
    "arrow": ".arrow",
    "webdataset": ".tar",
    "files": FOLDER_TABLE,
}
SUFFIX = "|".join(map(re.escape, FILE_SUFFIXES.values()))
DATA_KEY = (
    r"data/(?:[A-Za-z0-9%._~-]+=[A-Za-z0-9%._~-]*/)?(?:[0-9]{6,}-[0-9]{3,}/)?"
    rf"[0-9]{{6,}}-[0-9]{{5,}}-[0-9a-f]{{8}}(?:{SUFFIX})"
)
MANIFEST_KEY = r"manifest/[0-9]{6,}-[0-9]{5,}\.parquet"
FILE_NAME = re.compile(
    r"(?P<commit>[0-9]{6,})-[0-9]{5,}(?:-[0-9a-f]{8})?(?:\.parquet|\.arrow|\.tar)?"
)


def rows_key(sha256: str) -> str:
    """The rows of one file, with the places of their images in the source."""
    return f"_rows/{sha256[:DIGEST_DIGITS]}.parquet"


def manifest_piece_key(commit: int, number: int) -> str:
    """A piece of the manifest that this commit announces."""
    return f"{MANIFEST_FOLDER}/{commit:06d}-{number:05d}.parquet"


def data_key(partition: str, commit: int, number: int, sha256: str, suffix: str) -> str:
    """A file that a commit announces: its number there, and the digest of its rows.

    `partition` is the folder of a value, "" if there are none. Of a folder of pictures, the key is
    that of the table in it.
    """
    folders = [DATA_FOLDER]
    if partition:
        folders.append(partition)
    thousand = number // SUBFOLDER_FILES
    if thousand:
        folders.append(f"{commit:06d}-{thousand:03d}")
    folders.append(f"{commit:06d}-{number:05d}-{sha256[:NAME_DIGITS]}{suffix}")
    return "/".join(folders)


def partition_folder(column: str, value: object) -> str:
    """The folder of one value of a column, in the layout of Hive: any text is one plain name.

    Raises BadInput if the name would be too long.
    """
    text = NULL_PARTITION if value is None else quote(str(value), safe="")
    folder = f"{quote(column, safe='')}={text}"
    if len(folder) > MAX_FOLDER_CHARS:
        raise BadInput(
            f"column {column!r}: {cut_name(str(value))!r} is too long for a folder's name. "
            "Choose another column to partition by."
        )
    return folder
