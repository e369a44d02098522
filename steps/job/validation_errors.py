"""What is wrong in a job, said so that it can be mended: place, setting, and the nearest right one."""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from imagekiln.steps.job.introspection import (
    SettingPath,
    has_group_kinds,
    has_user_defined_keys,
    iter_setting_paths,
    setting_description,
    setting_names,
)

# What people write for what is meant, where no letters show it.
SYNONYMS = {"fp16": "float16", "fp32": "float32", "half": "float16", "gpu": "cuda", "jpg": "jpeg"}
# How alike two names must be for one to be a misspelling of the other: in its group, and in any other.
MIN_SIMILARITY, MIN_SIMILARITY_ELSEWHERE = 0.6, 0.8
MAX_VALUE_CHARS = 60
REMEDIES = {
    "finite_number": "write a finite number",
    "float_parsing": "write a number",
    "float_type": "write a number",
    "greater_than": "write more than {gt}",
    "greater_than_equal": "write {ge} or more",
    "int_from_float": "write a whole number",
    "int_parsing": "write a whole number",
    "int_parsing_size": "write a smaller number",
    "int_type": "write a whole number",
    "less_than": "write less than {lt}",
    "less_than_equal": "write {le} or less",
    "string_too_short": "write something",
    "too_short": "write at least one",
    "tuple_type": "write a list, such as [one, two]",
}


def describe_validation_errors(
    job: type[BaseModel],
    errors: Sequence[ErrorDetails],
    name: str,
    places: Mapping[SettingPath, str],
) -> list[str]:
    """One sentence for each wrong setting. `places` says where each stands in the file `name`."""
    paths = [_setting_path(job, error) for error in errors]
    said: dict[SettingPath, str] = {}
    for path, error in zip(paths, errors, strict=True):
        # Of a setting that may be one of several kinds, pydantic tells why it is none of them: once is enough.
        deeper = any(other[: len(path)] == path != other for other in paths)
        if not deeper and (path not in said or error["type"] == "too_short"):
            said[path] = _describe_error(job, path, error, name, places)
    return list(said.values())


def _describe_error(
    job: type[BaseModel],
    path: SettingPath,
    error: ErrorDetails,
    name: str,
    places: Mapping[SettingPath, str],
) -> str:
    where = next(
        (places[path[:depth]] for depth in range(len(path), -1, -1) if path[:depth] in places), name
    )
    return (
        f"{where}: {'.'.join(map(str, path)) or 'the job'} {_describe_problem(job, path, error)}."
    )


def _describe_problem(job: type[BaseModel], path: SettingPath, error: ErrorDetails) -> str:
    match error["type"]:
        case "extra_forbidden" | "invalid_key":
            return f"is no setting; {_suggest_setting(job, path)}"
        case "missing":
            return "is missing; write it"
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "union_tag_invalid":
            given = str(error["ctx"]["tag"])
            return f"is {_format_value(given)}; {_suggest_choice(given, _split_choices(error['ctx']['expected_tags']))}"
        case _:
            return f"is {_format_value(error['input'])}; {_suggest_remedy(job, path, error)}"


def _suggest_remedy(job: type[BaseModel], path: SettingPath, error: ErrorDetails) -> str:
    given, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "literal_error":
            return _suggest_choice(str(given), _split_choices(context["expected"]))
        case "string_pattern_mismatch" if described := setting_description(job, path):
            return f"write {described[:1].lower()}{described[1:].rstrip('.')}"
        case "string_type":
            return (
                "write text"
                if given is None or isinstance(given, dict | list)
                else "put it in quotes"
            )
        case "model_type":
            return f"write settings in it: {', '.join(setting_names(job, path))}"
        case kind if kind in REMEDIES:
            return REMEDIES[kind].format(**context)
        case _:
            return error["msg"][:1].lower() + error["msg"][1:]


def _split_choices(listed: object) -> list[str]:
    return [choice.strip("'") for choice in str(listed).replace(" or ", ", ").split(", ")]


def _suggest_choice(given: str, choices: list[str]) -> str:
    spelled = SYNONYMS.get(given.lower(), given.lower().replace("+", "p"))
    close = get_close_matches(spelled, choices, n=1, cutoff=MIN_SIMILARITY)
    return f'write "{close[0]}"' if close else f"write one of {', '.join(choices)}"


def _suggest_setting(job: type[BaseModel], path: SettingPath) -> str:
    """A setting of that group that is spelled much alike, or else those of other groups."""
    given, here = str(path[-1]).lower() if path else "", setting_names(job, path[:-1])
    if given in here:
        return "it is one of another kind, so remove it or change kind"
    if get_close_matches(given, here, cutoff=MIN_SIMILARITY):
        return _suggest_choice(given, here)
    elsewhere = [place for place in iter_setting_paths(job) if len(place) > 1]
    close = get_close_matches(
        given, {str(place[-1]) for place in elsewhere}, n=1, cutoff=MIN_SIMILARITY_ELSEWHERE
    )
    found = [".".join(map(str, place)) for place in elsewhere if place[-1] in close]
    return f"write {' or '.join(found)}" if found else _suggest_choice(given, here)


def _setting_path(job: type[BaseModel], error: ErrorDetails) -> SettingPath:
    """The path of a setting, without the words that pydantic adds for the members of a union."""
    path: SettingPath = ()
    told = False  # of a group that has kinds, pydantic tells the kind first
    for name in error["loc"]:
        if name == "[key]":
            continue
        if has_group_kinds(job, path) and not told:
            told = True
        elif isinstance(name, int) or setting_names(job, path) or has_user_defined_keys(job, path):
            path, told = (*path, name), False
    return (*path, "kind") if error["type"] == "union_tag_invalid" else path


def _format_value(given: object) -> str:
    match given:
        case None:
            return "empty"
        case bool():
            return str(given).lower()
        case dict():
            return "a group of settings"
        case list() | tuple():
            return "a list" if given else "an empty list"
        case str():
            return json.dumps(given[:MAX_VALUE_CHARS], ensure_ascii=False)
        case _:
            return str(given)[:MAX_VALUE_CHARS]
