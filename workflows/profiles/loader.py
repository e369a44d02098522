"""Loader of GPU profiles, which describe GPU clusters. The bundled ones are in this folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.steps.job.settings_file import (
    SettingPath,
    parse_settings,
    read_local_text,
    validate_settings,
)
from imagekiln.workflows.profiles.profile import Profile, ProfileFile

PROFILE_FOLDER = Path(__file__).parent
BASE_PROFILE = "gpu"  # the default of `like`
MAX_INHERITANCE = 5  # profiles in a chain of `like`

# Settings, with the file and line of each.
LocatedValues = tuple[dict[str, object], dict[SettingPath, str]]


def bundled_profiles() -> tuple[str, ...]:
    """List the names of the bundled profiles, sorted."""
    return tuple(sorted(path.stem for path in PROFILE_FOLDER.glob("*.yaml")))


def load_profile(name: str) -> Profile:
    """Load the bundled profile with this name, or a user's file. Raises Missing, BadInput."""
    values, locations = _read_values(name, MAX_INHERITANCE)
    named = {"name": Path(name).stem} | values
    return validate_settings(ProfileFile, named, name, locations)


def _read_values(name: str, depth: int) -> LocatedValues:
    """Read the profile's settings, merged over the settings of the profile named by `like`."""
    path = _profile_path(name)
    text = read_local_text(str(path), "a YAML file")
    values, locations = parse_settings(text, name, "at least `description:`")
    if name == BASE_PROFILE:
        return values, locations

    like = values.pop("like", BASE_PROFILE)
    if not isinstance(like, str) or not depth:
        where = locations.get(("like",), name)
        raise BadInput(f"{where}: like must name a profile, and none that is like this one.")
    base_values, base_locations = _read_values(like, depth - 1)
    merged = _merge(base_values, values)
    return merged, base_locations | locations


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
    """Suggest the bundled spelling of a name, or else all: a similar name is another GPU."""
    spelling = name.strip().lower().replace("_", "-").replace(" ", "-")
    if spelling in bundled:
        return f'write "{spelling}"'
    return f"write one of {', '.join(bundled)}, or the path of a file"


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Merge groups of settings. Any other setting in `above` replaces the one in `below`."""
    merged = dict(below)
    for key, value in above.items():
        group = merged.get(key)
        if isinstance(group, dict) and isinstance(value, dict):
            merged[key] = _merge(cast("dict[str, object]", group), cast("dict[str, object]", value))
        else:
            merged[key] = value
    return merged
