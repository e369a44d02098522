"""Where a job comes from: its file, and the place of each setting in it.

Nothing of it is part of the job: a plan is the same wherever the file is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SettingPath = tuple[str | int, ...]


def format_path(path: SettingPath) -> str:
    """The path as people write it, such as gates.checks[0].name."""
    text = ""
    for name in path:
        if isinstance(name, int):
            text += f"[{name}]"
        else:
            text += f".{name}" if text else name
    return text


@dataclass(frozen=True, slots=True)
class JobOrigin:
    """The folder of a job's file on this machine, if it has one, and the place of each setting.

    All origins are equal, so that equal jobs are.
    """

    folder: Path | None = field(default=None, compare=False)
    locations: Mapping[SettingPath, str] = field(default_factory=dict, compare=False)

    def locate(self, path: SettingPath) -> str | None:
        """The place of the setting, or else of the innermost group around it, as job.yaml:12."""
        for depth in range(len(path), -1, -1):
            if path[:depth] in self.locations:
                return self.locations[path[:depth]]
        return None
