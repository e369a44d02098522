"""The settings that tell images of one prompt apart, for their captions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

CAPTION_SETTINGS = ("seed", "steps", "guidance", "sampler", "loras", "strength")
SettingValues: TypeAlias = Mapping[str, object]


def find_varied_settings(
    images: Iterable[tuple[str, SettingValues]],
) -> dict[str, tuple[str, ...]]:
    """By prompt, the settings that differ among its images. Takes prompts with settings."""
    by_prompt: defaultdict[str, list[SettingValues]] = defaultdict(list)
    for prompt, values in images:
        by_prompt[prompt].append(values)
    return {
        prompt: tuple(
            name for name in CAPTION_SETTINGS if len({values.get(name) for values in of_prompt}) > 1
        )
        for prompt, of_prompt in by_prompt.items()
    }


def describe_setting(name: str, value: object) -> str:
    """A setting with its value, such as `guidance 2.5`."""
    if value is None or value == "":
        return f"no {name}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
