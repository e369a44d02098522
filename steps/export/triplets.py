"""Triplets of edited images: the input image, the instruction, and the result.

The columns have the names of `fusing/instructpix2pix-1000-samples`, which are the defaults of
diffusers' `train_instruct_pix2pix.py`. Images beside the first of a row, such as of a model that
reads several, are in a list, so that all files have the same columns.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from imagekiln.steps.errors import BadInput
from imagekiln.steps.runs.image import INPUT_IMAGE_COLUMNS
from imagekiln.steps.runs.keys import input_image_digests, input_image_key
from imagekiln.steps.runs.readback import read_input_image
from imagekiln.steps.runs.tables import IMAGE_FIELD
from imagekiln.steps.storage.store import Store

FIRST_INPUT = "input_image"
INSTRUCTION = "edit_prompt"
RESULT = "edited_image"
OTHER_INPUTS = "other_input_images"
TRIPLET_COLUMNS = (FIRST_INPUT, INSTRUCTION, RESULT, OTHER_INPUTS)
# Columns whose images are edited. Masks and control images only guide that.
EDITED_COLUMNS = tuple(
    name for name in INPUT_IMAGE_COLUMNS if name not in ("mask_image", "control_image")
)
IMAGE_FEATURE = {"_type": "Image"}
HUGGINGFACE_FEATURES = {
    FIRST_INPUT: IMAGE_FEATURE,
    RESULT: IMAGE_FEATURE,
    OTHER_INPUTS: {"feature": IMAGE_FEATURE, "_type": "List"},
}
# By the first bytes of a file: the formats of input images.
SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8": ".jpg", b"RIFF": ".webp"}
InputImages = Sequence[tuple[str, bytes]]  # of one row: the SHA-256 and the bytes of each


def require_free_names(columns: Sequence[str]) -> None:
    """Raise BadInput if a column has a name of triplets."""
    for name in TRIPLET_COLUMNS:
        if name in columns:
            raise BadInput(
                f"column {name!r}: triplets have another column of this name. Name the columns "
                "to export, without it."
            )


def read_inputs(output: Store, rows: pa.Table, pool: Executor) -> list[InputImages]:
    """Read the edited images of each row, from the folders of their runs in `output`.

    Raises BadInput if one has changed, Missing, TryAgain.
    """
    keys = _input_keys(rows)
    distinct = list(dict.fromkeys(chain.from_iterable(keys)))
    read = partial(read_input_image, output)
    contents = dict(zip(distinct, pool.map(read, distinct), strict=True))
    inputs: list[InputImages] = []
    for of_row in keys:
        images = [(PurePosixPath(key).name, contents[key]) for key in of_row]
        inputs.append(images)
    return inputs


def name_inputs(images: InputImages) -> dict[str, bytes]:
    """Name the input images of a row as members of a WebDataset sample, by their formats."""
    members = {}
    for number, (_, content) in enumerate(images, start=1):
        name = f".{FIRST_INPUT}"
        if number > 1:
            name += f"_{number}"
        for start, suffix in SUFFIXES.items():
            if content.startswith(start):
                members[name + suffix] = content
    return members


def count_inputs(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Count the edited images of each row."""
    return np.array([len(keys) for keys in _input_keys(rows)], np.int64)


def _input_keys(rows: pa.Table) -> list[list[str]]:
    """Return the keys of the edited images of each row."""
    names = [name for name in EDITED_COLUMNS if name in rows.column_names]
    keys = []
    for row in rows.select(["part", *names]).to_pylist():
        folder, _, _ = row["part"].partition("/")
        digests: list[str] = []
        for name in names:
            digests += input_image_digests(row[name])
        of_row = [f"{folder}/{input_image_key(digest)}" for digest in digests]
        keys.append(of_row)
    return keys


def triplet_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of triplets of these rows."""
    kind = IMAGE_FIELD.type
    first = (
        pa.field(FIRST_INPUT, kind),
        rows.field("prompt").with_name(INSTRUCTION),
        pa.field(RESULT, kind),
        pa.field(OTHER_INPUTS, pa.list_(pa.field("element", kind))),
    )
    others = [field for field in rows if field.name != "prompt"]
    features = {"info": {"features": HUGGINGFACE_FEATURES}}
    return pa.schema([*first, *others], {"huggingface": json.dumps(features)})


def triplet_table(rows: pa.Table, images: pa.Array, inputs: Sequence[InputImages]) -> pa.Table:
    """Build triplets of these rows, their `images`, and the input images of each."""
    files = []
    for of_row in inputs:
        images_of_row = [{"path": name, "bytes": content} for name, content in of_row]
        files.append(images_of_row)
    schema = triplet_schema(rows.schema)
    first = [of_row[0] if of_row else None for of_row in files]
    others = [of_row[1:] for of_row in files]
    columns = {
        FIRST_INPUT: pa.array(first, IMAGE_FIELD.type),
        INSTRUCTION: rows["prompt"],
        RESULT: images,
        OTHER_INPUTS: pa.array(others, schema.field(OTHER_INPUTS).type),
    }
    for name in schema.names:
        if name not in columns:
            columns[name] = rows[name]
    arrays = [columns[name] for name in schema.names]
    return pa.Table.from_arrays(arrays, schema=schema)
