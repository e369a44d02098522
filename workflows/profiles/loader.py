"""GPU profiles as data: how GPU clusters differ. The bundled ones lie beside this module."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.profiles.profile import Profile

PROFILE_FOLDER = Path(__file__).parent
BASE_PROFILE = "gpu"  # what a profile is like that names no other
MAX_INHERITANCE = 5  # profiles in a chain of `like`


def bundled_profiles() -> tuple[str, ...]:
    """The names of the bundled profiles, sorted."""
    return tuple(sorted(path.stem for path in PROFILE_FOLDER.glob("*.yaml")))


def load_profile(name: str) -> Profile:
    """The bundled profile of that name, or the one in the user's file. Raises Missing, BadInput."""
    values = _read_values(name, MAX_INHERITANCE)
    try:
        return Profile.model_validate({"name": Path(name).stem} | values)
    except ValidationError as error:
        mistakes = [
            f"{name}: {'.'.join(map(str, mistake['loc']))} {mistake['msg'].lower()}."
            for mistake in error.errors()
        ]
        raise BadInput(*mistakes) from error


def _read_values(name: str, depth: int) -> dict[str, object]:
    """The profile's settings on top of those of the profile that it is like."""
    values = _read_file(name, _profile_path(name))
    if name == BASE_PROFILE:
        return values

    like = values.pop("like", BASE_PROFILE)
    if not isinstance(like, str) or not depth:
        raise BadInput(f"{name}: like must name a profile, and none that is like this one.")
    return _merge(_read_values(like, depth - 1), values)


def _read_file(name: str, path: Path) -> dict[str, object]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(
            f"{name}: is no profile that can be read ({error}). Name a YAML file."
        ) from error
    if not isinstance(values, dict):
        raise BadInput(f"{name}: holds no settings. Write at least `description:`.")
    return values


def _profile_path(name: str) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise Missing(
                f"{name}: no such profile. Write the path of a YAML file, "
                "or the name of a bundled profile."
            )
        return path

    bundled = bundled_profiles()
    if name not in bundled:
        raise Missing(f"cluster.profile is {name!r}; {_suggestion(name, bundled)}.")
    return PROFILE_FOLDER / f"{name}.yaml"


def _suggestion(name: str, bundled: tuple[str, ...]) -> str:
    matches = get_close_matches(name, bundled, n=1)
    if matches:
        return f'write "{matches[0]}"'
    return f"write one of {', '.join(bundled)}, or the path of a file"


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Groups are merged; everything else of `above` replaces what is below."""
    merged = dict(below)
    for key, value in above.items():
        group = merged.get(key)
        if isinstance(group, dict) and isinstance(value, dict):
            merged[key] = _merge(cast("dict[str, object]", group), cast("dict[str, object]", value))
        else:
            merged[key] = value
    return merged
