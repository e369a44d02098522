"""GPU profiles: what GPU clusters differ in, as data. Bundled ones lie in profiles/; a user's own is such a file."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.profiles.profile import Profile

PROFILE_FOLDER = Path(__file__).parent
BASE_PROFILE = "gpu"  # what every profile is like that says nothing else
MAX_INHERITANCE = 5  # of profiles that are like profiles


def bundled_profiles() -> tuple[str, ...]:
    """The names of the bundled profiles, sorted."""
    return tuple(sorted(path.stem for path in PROFILE_FOLDER.glob("*.yaml")))


def load_profile(name: str) -> Profile:
    """The bundled profile of that name, or the one in the user's file. Raises Missing and BadInput."""
    values = _read_values(name, MAX_INHERITANCE)
    try:
        return Profile.model_validate({"name": Path(name).stem} | values)
    except ValidationError as error:
        wrong = [
            f"{name}: {'.'.join(map(str, each['loc']))} {each['msg'].lower()}."
            for each in error.errors()
        ]
        raise BadInput(*wrong) from error


def _read_values(name: str, depth: int) -> dict[str, object]:
    """The profile's settings on top of those of the profile that it is like."""
    try:
        values = yaml.safe_load(_profile_path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(
            f"{name}: is no profile that can be read ({error}). Name a YAML file."
        ) from error
    if not isinstance(values, dict):
        raise BadInput(f"{name}: holds no settings. Write at least `description:`.")
    if name == BASE_PROFILE:
        return values
    like = values.pop("like", BASE_PROFILE)
    if not isinstance(like, str) or not depth:
        raise BadInput(f"{name}: like must name a profile, and none that is like this one.")
    return _merge(_read_values(like, depth - 1), values)


def _profile_path(name: str) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise Missing(
                f"{name}: no such profile. Write the path of a YAML file, or a bundled profile's name."
            )
        return Path(name)
    if name not in bundled_profiles():
        close = get_close_matches(name, bundled_profiles(), n=1)
        hint = (
            f'write "{close[0]}"'
            if close
            else f"write one of {', '.join(bundled_profiles())}, or a file's path"
        )
        raise Missing(f"cluster.profile is {name!r}; {hint}.")
    return PROFILE_FOLDER / f"{name}.yaml"


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Groups are merged, everything else of `above` replaces what is below."""
    merged = dict(below)
    for key, value in above.items():
        there = merged.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            merged[key] = _merge(cast("dict[str, object]", there), cast("dict[str, object]", value))
        else:
            merged[key] = value
    return merged
