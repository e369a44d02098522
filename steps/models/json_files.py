"""The small JSON files of models, from whoever made them."""

import json
from pathlib import Path

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import open_file

MAX_JSON_BYTES = 64 * 2**20  # an index of weights has some megabytes

Config = dict[str, object]


def read_json(path: Path, name: str) -> Config:
    """The JSON object in a file of what errors call `name`. Raises BadInput, Missing, TryAgain."""
    with translate_errors(str(path)), open_file(path) as file:
        content = file.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise BadInput(f"{name}: {path.name} is too large for a configuration. Save it again.")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(
            f"{name}: {path.name} is not JSON ({error}). Save the model again."
        ) from error
    if not isinstance(values, dict):
        raise BadInput(f"{name}: {path.name} is not a JSON object. Save the model again.")
    return values
