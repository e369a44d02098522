"""Mistakes in settings as sentences: where each is, what is wrong, and what to write instead.

The settings are those of a job, of a GPU profile or of any other group: `root` is its type.
"""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from imagekiln.steps.job.fields import SettingMistake
from imagekiln.steps.job.introspection import (
    SettingPath,
    accepts_type,
    format_path,
    has_group_kinds,
    has_user_defined_keys,
    iter_setting_paths,
    kinds_with_setting,
    required_setting_names,
    setting_description,
    setting_names,
)
from imagekiln.steps.job.origin import JobOrigin
from imagekiln.steps.runtime.sanitize import redact_urls

# Common names of a choice that are not spelled like it.
SYNONYMS = {"fp16": "float16", "fp32": "float32", "half": "float16", "gpu": "cuda", "jpg": "jpeg"}
IMAGE_KINDS = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "webp": "webp"}
# How similar a name must be to a setting of its group, or of another, to be a misspelling of it.
MIN_SIMILARITY = 0.6
MIN_SIMILARITY_ELSEWHERE = 0.8
MAX_VALUE_CHARS = 60
# A value for all rows is meant more often than the name of a column, or a sweep.
GROUPS_BESIDE = ("columns", "prompts")
MAX_SEARCHED_CHARS = 4000  # for URLs with credentials
REMEDIES = {
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "dict_type": "write a group of settings",
    "too_short": "list at least one",
    "tuple_type": "write a list, such as [one, two]",
}


def describe_validation_errors(
    root: type[BaseModel],
    errors: Sequence[ErrorDetails],
    name: str,
    locations: Mapping[SettingPath, str],
    noun: str = "the job",
) -> list[str]:
    """One sentence for each wrong setting. `locations` has where each was set; `name` is the file.

    `noun` is what all settings together are called.

    Where a setting takes several types, pydantic reports each of them: one sentence is enough.
    """
    paths = [_setting_path(root, error) for error in errors]
    problems: dict[SettingPath, str] = {}
    for path, error in zip(paths, errors, strict=True):
        has_deeper_error = any(_is_inside(other, path) for other in paths)
        if has_deeper_error:
            continue
        is_first = path not in problems
        if is_first or error["type"] == "too_short":
            problems[path] = _describe_problem(root, path, error)

    origin = JobOrigin(locations=locations)
    sentences = []
    for path, problem in problems.items():
        where = origin.locate(path) or name
        setting = format_path(path) or noun
        sentences.append(f"{where}: {setting} {problem}.")
    return sentences


def _is_inside(path: SettingPath, group: SettingPath) -> bool:
    if len(path) <= len(group):
        return False
    return path[: len(group)] == group


def _describe_problem(root: type[BaseModel], path: SettingPath, error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden" if path[:-1] == ("columns",) and (
            error["input"] in setting_names(root, ("columns",))
        ):
            return f"is not a setting; write {error['input']}: {path[-1]}"
        case "extra_forbidden" if path == ("format",):
            return _describe_format(str(error["input"]))
        case "extra_forbidden" | "invalid_key":
            return _describe_unknown_setting(root, path)
        case "missing":
            return f"is missing; {_suggest_addition(root, path)}"
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "union_tag_invalid":
            kind = str(error["ctx"]["tag"])
            choices = _split_choices(error["ctx"]["expected_tags"])
            return f"is {_format_value(kind)}; {_suggest_choice(kind, choices)}"
        case "union_tag_not_found":
            kinds = " or ".join(kinds_with_setting(root, (*path, "kind")))
            return f"has no kind; set {format_path((*path, 'kind'))} to {kinds}"
        case _:
            return f"is {_format_value(error['input'])}; {_suggest_value(root, path, error)}"


def _describe_format(value: str) -> str:
    """What to set in place of a format, that of the dataset or that of its images."""
    if kind := IMAGE_KINDS.get(value.lower()):
        return f"is not a setting; for such images, set encoding.kind: {kind}"
    return (
        "is not a setting, since a run is Parquet; remove it, and for WebDataset or a folder of "
        "pictures set export, or type: imagekiln export RUN FOLDER --as webdataset"
    )


def _suggest_value(root: type[BaseModel], path: SettingPath, error: ErrorDetails) -> str:
    match error["type"]:
        case "literal_error":
            choices = _split_choices(error["ctx"]["expected"])
            return _suggest_choice(str(error["input"]), choices)
        case "string_too_short":
            return _suggest_description(root, path) or "write some text"
        case "string_pattern_mismatch" if description := _suggest_description(root, path):
            return description
        case "greater_than_equal" if path == ("defaults", "seed"):
            return "leave it out: each row then has a seed of its own, the same each time"
        case "string_type":
            return _suggest_text(root, path, error["input"])
        case "model_type":
            return _suggest_group(root, path, error["input"])
        case kind if kind in REMEDIES:
            return REMEDIES[kind]
        case _:  # such as: it should be less than or equal to 1000
            problem = error["msg"].replace("Input should", "it should")
            return problem[:1].lower() + problem[1:]


def _suggest_group(root: type[BaseModel], path: SettingPath, value: object) -> str:
    """How to write a group; with the value in it, where that can be its only required setting."""
    required = required_setting_names(root, path)
    if len(required) == 1 and isinstance(value, str):
        return f"write {format_path(path)}: {{{required[0]}: {_cut_value(value)}}}"
    names = setting_names(root, path)
    return f"it is a group: set {_join_paths(path, names)}" if names else REMEDIES["dict_type"]


def _suggest_addition(root: type[BaseModel], path: SettingPath) -> str:
    required = required_setting_names(root, path)
    if required and not accepts_type(root, path, str):
        return f"set {_join_paths(path, required)}"
    return _suggest_description(root, path) or "add it"


def _join_paths(group: SettingPath, names: list[str]) -> str:
    paths = [format_path((*group, name)) for name in names]
    return ", ".join(paths)


def _suggest_text(root: type[BaseModel], path: SettingPath, value: object) -> str:
    if value is not None and not isinstance(value, dict | list):
        return "put it in quotes"
    return "write text or a list" if accepts_type(root, path, tuple) else "write text"


def _suggest_description(root: type[BaseModel], path: SettingPath) -> str | None:
    """The setting's description as a remedy: write the folder or URI that holds the runs."""
    description = setting_description(root, path)
    if description is None:
        return None
    first_word = description.partition(" ")[0]
    if first_word.istitle():
        description = description[:1].lower() + description[1:]
    return f"write {description.rstrip('.')}"


def _split_choices(text: object) -> list[str]:
    choices = str(text).replace(" or ", ", ").split(", ")
    return [choice.strip("'") for choice in choices]


def _suggest_choice(value: str, choices: list[str]) -> str:
    match = _closest(value, choices)
    return f'write "{match}"' if match else f"write one of {', '.join(choices)}"


def _closest(value: str, choices: list[str]) -> str | None:
    lowered = value.lower()
    spelling = SYNONYMS.get(lowered, lowered.replace("+", "p"))
    matches = get_close_matches(spelling, choices, n=1, cutoff=MIN_SIMILARITY)
    return matches[0] if matches else None


def _describe_unknown_setting(root: type[BaseModel], path: SettingPath) -> str:
    """The problem, with the setting that was probably meant."""
    *group, last = path or [""]
    name = str(last).lower().replace("-", "_")
    names = setting_names(root, tuple(group))
    if name in names and name == str(last):
        return _describe_setting_of_other_kind(root, (*group, name))

    paths = _find_intended_settings(root, tuple(group), name)
    if paths:
        return f"is not a setting; write {' or '.join(map(format_path, paths))}"
    owner = f"the settings of {format_path(tuple(group))}" if group else "the settings"
    return f"is not a setting; {owner} are {', '.join(names)}"


def _find_intended_settings(
    root: type[BaseModel], group: SettingPath, name: str
) -> list[SettingPath]:
    """Settings of exactly this name in any group, else the nearest of this group or of another."""
    inner = [path for path in iter_setting_paths(root) if len(path) > 1]
    names = setting_names(root, group)
    if name not in names and (same := [path for path in inner if path[-1] == name]):
        return [path for path in same if path[0] not in GROUPS_BESIDE] or same
    last_names = [str(path[-1]) for path in inner]
    near = _closest(name, names)
    matches = get_close_matches(name, [*names, *last_names], n=1, cutoff=MIN_SIMILARITY_ELSEWHERE)
    if near and not {*matches} - {*names}:
        return [(*group, near)]
    return [path for path in inner if path[-1] in matches and path[0] not in GROUPS_BESIDE]


def _describe_setting_of_other_kind(root: type[BaseModel], path: SettingPath) -> str:
    *group, _ = path
    if "kind" not in setting_names(root, tuple(group)):
        return f"is a setting of another kind of {format_path(tuple(group))}; remove it"
    kind_path = format_path((*group, "kind"))
    kinds = " or ".join(kinds_with_setting(root, path))
    return f"is a setting of {kind_path} {kinds}; remove it, or change {kind_path}"


def _setting_path(root: type[BaseModel], error: ErrorDetails) -> SettingPath:
    """The path of the setting, without the names that pydantic adds for the members of a union."""
    path: SettingPath = ()
    kind_skipped = False  # where there are several kinds, pydantic names the kind first
    for name in error["loc"]:
        if name == "[key]":
            continue
        if _has_kinds(root, path) and not kind_skipped:
            kind_skipped = True
        elif (
            isinstance(name, int) or setting_names(root, path) or has_user_defined_keys(root, path)
        ):
            path = (*path, name)
            kind_skipped = False
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, SettingMistake):
        return (*path, *cause.path)
    return (*path, "kind") if error["type"] == "union_tag_invalid" else path


def _has_kinds(root: type[BaseModel], path: SettingPath) -> bool:
    """Whether a setting is a group of several kinds, or else text in its place, as `prompts`."""
    if has_group_kinds(root, path):
        return True
    return accepts_type(root, path, str) and bool(setting_names(root, path))


def _format_value(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case dict():
            return "a group of settings"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case str():
            return json.dumps(_cut_value(value), ensure_ascii=False)
        case _:
            return str(value)[:MAX_VALUE_CHARS]


def _cut_value(text: str) -> str:
    """The beginning of a text. Half of a URL is none whose credentials are known as such."""
    return redact_urls(text[:MAX_SEARCHED_CHARS])[:MAX_VALUE_CHARS]
