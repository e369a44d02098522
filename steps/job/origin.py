"""Where a job comes from: its file, and where in that, or beside it, each setting was set.

Nothing of it is part of the job: a plan is the same wherever the file is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagekiln.steps.job.introspection import SettingPath


@dataclass(frozen=True, slots=True)
class JobOrigin:
    """The folder of a job's file on this machine, if it has one, and the place of each setting.

    All origins are equal, so that equal jobs are.
    """

    folder: Path | None = field(default=None, compare=False)
    locations: Mapping[SettingPath, str] = field(default_factory=dict, compare=False)

    def locate(self, path: SettingPath) -> str | None:
        """Where the setting, or else the innermost group around it, was set, as job.yaml:12."""
        for depth in range(len(path), -1, -1):
            if path[:depth] in self.locations:
                return self.locations[path[:depth]]
        return None
