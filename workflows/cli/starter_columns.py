"""The columns of a new user's prompts: which are ours by their names, and which are carried."""

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import yaml

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import ColumnNames
from imagekiln.steps.plan.column_readers import passthrough_schema
from imagekiln.steps.plan.input_formats import read_first_rows, read_schema
from imagekiln.steps.plan.source_files import SourceFile, expand_pattern
from imagekiln.steps.storage.uri import is_remote_uri

# Names that say which of our columns a column is, as `_normalize` writes them: our own first.
OBVIOUS_NAMES = {
    "prompt": ("prompt", "caption", "text"),
    "id": ("id", "uid", "uuid"),
    "negative_prompt": ("negative_prompt", "negative", "neg_prompt"),
    "seed": ("seed", "seed_value"),
    "width": ("width", "image_width"),
    "height": ("height", "image_height"),
    "steps": ("steps", "num_inference_steps", "inference_steps", "sampling_steps"),
    "guidance": ("guidance", "guidance_scale", "cfg", "cfg_scale"),
    "images": ("images", "num_images_per_prompt"),
    "strength": ("strength", "denoising_strength"),
}
# What else the name of a column of prompts may have in it: not enough to read it unasked.
PROMPT_PATTERN = re.compile(r"prompt|caption|text|desc|title", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StarterColumns:
    """The values of a job's `columns` and `carry`.

    `prompt_example` is a column that may hold the prompts, where `names` has none that does, and
    `id_example` one that tells rows with the same prompt apart.
    """

    names: dict[str, str]
    carry: list[str]
    prompt_example: str | None = None
    id_example: str | None = None

    @property
    def prompt_setting(self) -> str | None:
        """The setting that the user has to write, with an example; None where there is one."""
        if "prompt" in self.names:
            return None
        return f"columns: {_to_flow({'prompt': self.prompt_example or 'NAME', **self.names})}"

    def to_yaml(self) -> str:
        """The settings as lines of a job file, each with a comment."""
        lines = []
        if self.prompt_setting is not None:
            lines.append("# No column looks like the prompt. Name the one that holds it:")
            lines += (f"# {line}" for line in self.prompt_setting.splitlines())
        elif self.names:
            lines.append("# Your columns that are read:")
            lines.append(f"columns: {_to_flow(self.names)}")
        if self.id_example is not None:
            setting = _to_flow({**self.names, "id": self.id_example})
            lines.append(
                "# Prompts repeat: rows that are alike make one image. For an image of each:"
            )
            lines += (f"# {line}" for line in f"columns: {setting}".splitlines())
        lines.append("# Those that are kept in the dataset, without effect on the images:")
        lines.append(f"carry: {_to_flow(self.carry)}")
        return "".join(f"{line}\n" for line in lines)


def read_starter_columns(prompts: str) -> StarterColumns | None:
    """Choose among the columns of local prompts, by their first file; None where there is none.

    Raises BadInput where they cannot be read, TryAgain.
    """
    if is_remote_uri(prompts):
        return None
    files = expand_pattern(prompts)
    if not files:
        return None
    source = SourceFile(files[0], Path(files[0]), sha256="")
    schema = read_schema(source)
    for name in source.partitions:
        if name not in schema.names:
            schema = schema.append(pa.field(name, pa.string()))
    columns = choose_columns(schema)
    with suppress(BadInput):  # of rows that planning will judge
        return replace(columns, id_example=_find_id(source, columns))
    return columns


def _find_id(source: SourceFile, columns: StarterColumns) -> str | None:
    """A column without repeats in the first rows, where prompts repeat that nothing tells apart."""
    prompt = columns.names.get("prompt")
    if prompt is None or not columns.names.keys().isdisjoint({"id", "seed"}):
        return None
    rows = read_first_rows(source, [prompt, *columns.carry])
    if rows is None or prompt not in rows.schema.names or _is_unique(rows[prompt]):
        return None
    names = [name for name in columns.carry if name in rows.schema.names]
    return next((name for name in names if _is_unique(rows[name])), None)


def _is_unique(values: pa.Array) -> bool:
    """Whether a column has texts or integers, a different one in each row."""
    is_comparable = pa.types.is_string(values.type) or pa.types.is_integer(values.type)
    return is_comparable and not values.null_count and len(values.unique()) == len(values)


def choose_columns(schema: pa.Schema) -> StarterColumns:
    """Our columns by their names; carried are the others that planning takes."""
    usable = [name for name in schema.names if _is_usable(schema, name)]
    names = {}
    for ours, aliases in OBVIOUS_NAMES.items():
        theirs = _choose_alias(usable, ours, aliases)
        if theirs is not None:
            names[ours] = theirs
    read = {*names.values(), *ColumnNames.model_fields}
    others = [name for name in usable if name not in read and _can_be_carried(schema, name)]
    texts = [name for name in others if pa.types.is_string(schema.field(name).type)]
    likely = [name for name in texts if PROMPT_PATTERN.search(name)]
    return StarterColumns(names, others, next(iter([*likely, *texts]), None))


def _choose_alias(names: list[str], ours: str, aliases: tuple[str, ...]) -> str | None:
    """The column of our name, or else the only one that has an alias; None where it is unclear."""
    if ours in names:
        return ours
    for wanted in ((ours,), aliases):
        likely = [name for name in names if _normalize(name) in wanted]
        if likely:
            return likely[0] if len(likely) == 1 else None
    return None


def _normalize(name: str) -> str:
    """A name without the variants of case, spaces, hyphens and underscores."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return re.sub(r"[\W_]+", "_", words.lower()).strip("_")


def _is_usable(schema: pa.Schema, name: str) -> bool:
    return bool(name) and name.isprintable() and schema.names.count(name) == 1


def _can_be_carried(schema: pa.Schema, name: str) -> bool:
    try:
        passthrough_schema(schema, (name,), where="")
    except BadInput:
        return False
    return True


def _to_flow(value: object) -> str:
    """A value as YAML on a line, or a few where it is long."""
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=96
    )
    return text.strip()
