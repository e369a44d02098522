"""What makes an image the same image: its id and its seed, in SQL for ten million rows and in Python for one.

Every text is framed by its length in bytes, so that no two different rows join to the same string.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from imagekiln.steps.models.loras import lora_key
from imagekiln.steps.runs.image import OPTIONAL_FIELDS, ImageParameters

IDENTITY_SQL = "concat(strlen(prompt), ':', prompt, '|', strlen(negative_prompt), ':', negative_prompt, '|', {seed}, '|', " \
    "width, 'x', height, '|', steps, '|', guidance, '|', sampler, {more})"  # fmt: skip
OPTIONAL_FIELDS_SQL = ", ".join(
    f"'|{name}:' || strlen(CAST({name} AS VARCHAR)) || ':' || CAST({name} AS VARCHAR)"
    for name in OPTIONAL_FIELDS
)
UNSEEDED_IDENTITY_SQL = IDENTITY_SQL.format(seed="'-'", more=OPTIONAL_FIELDS_SQL)
ID_DIGITS = 32  # 128 bits: a collision is not to be expected before 10^19 images
SEED_DIGITS = 13  # 52 bits, which every reader of JSON holds exactly


def model_key(digest: str, dtype: str, *further: str) -> str:
    """What the model adds to every image_id: its files, its precision, and what else changes all of its pixels.

    Each of `further` begins with what it is, such as `fp8`, so that no two mean the same.
    """
    return hashlib.sha256(json.dumps(["imagekiln-1", digest, dtype, *further]).encode()).hexdigest()


def compute_image_id(
    key: str, pixels: ImageParameters, digests: Mapping[str, str] | None = None
) -> str:
    """The id of one image, 32 hexadecimal digits. `digests` are those of LoRAs by name: names are not in ids."""
    if pixels.loras is not None and digests is not None:
        pixels = replace(pixels, loras=lora_key(pixels.loras, digests))
    texts = "|".join(
        f"{len(text.encode())}:{text}" for text in (pixels.prompt, pixels.negative_prompt)
    )
    rest = f"{pixels.seed}|{pixels.width}x{pixels.height}|{pixels.steps}|{pixels.guidance}|{pixels.sampler}"
    given = ((name, getattr(pixels, name)) for name in OPTIONAL_FIELDS)
    more = "".join(
        f"|{name}:{len(str(value).encode())}:{value}" for name, value in given if value is not None
    )
    return hashlib.sha256(f"{key}|{texts}|{rest}{more}".encode()).hexdigest()[:ID_DIGITS]


def image_id_sql(key: str) -> str:
    """The id of each image from columns of the names above; that of `loras` holds their keys."""
    return f"substr(sha256(concat('{key}|', {IDENTITY_SQL.format(seed='seed', more=OPTIONAL_FIELDS_SQL)})), 1, {ID_DIGITS})"


def seed_sql(job_seed: int) -> str:
    """The seed of each image: the row's own plus the image's index, or one derived from the row.

    Derived from the row's id, or its text and settings where it has none, so that rows added
    elsewhere in the input change no other image.
    """
    who = f"CASE WHEN id IS NULL THEN concat('text|', {UNSEEDED_IDENTITY_SQL}) ELSE concat('id|', id) END"
    digest = f"sha256(concat({job_seed}, '|', image_index, '|', {who}))"
    return f"coalesce(row_seed + image_index, CAST('0x' || substr({digest}, 1, {SEED_DIGITS}) AS BIGINT))"
