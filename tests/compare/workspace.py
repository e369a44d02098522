"""A folder of its own in which one state of Imagekiln carries out a scenario."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.compare.vocabulary import SettingNames

SECONDS = 300  # for one command
# Variables that would change what a command does.
FOREIGN = ("IMAGEKILN", "PYTHON", "AWS_", "ARGO", "KUBE")
PROGRESS = '{"event": "progress"'
# Figures that are another in each run: durations, rates, and shares of the time.
TIME = re.compile(r"\d[\d.,]*(?= ?(s|ms|min|h|seconds|a second|% of the time)\b)")
SETTINGS: Mapping[str, object] = {
    "prompts": "prompts.parquet",
    "model": {"id": "bundled:shapes", "dtype": "float32"},
    "defaults": {"steps": 3, "guidance": 3.0, "seed": 7},
    "batch": {"images": 4},
    "part": {"images": 4},
    "shard": {"images": 8},
    "device": "cpu",
}
Columns: TypeAlias = Mapping[str, Sequence[object]]


@dataclass(frozen=True, slots=True)
class Output:
    """Where the runs go: as jobs name it, and as fsspec reaches it."""

    uri: str
    path: str
    protocol: str = "file"
    options: Mapping[str, object] = field(default_factory=dict)

    def read(self) -> dict[str, bytes]:
        """Every file, by its path below the output."""
        files = self._filesystem()
        paths = files.find(self.path) if files.exists(self.path) else []
        return {path.removeprefix(f"{self.path}/"): files.cat_file(path) for path in paths}

    def remove(self, name: str) -> None:
        """Remove one file."""
        self._filesystem().rm_file(f"{self.path}/{name}")

    def _filesystem(self) -> fsspec.AbstractFileSystem:
        return fsspec.filesystem(self.protocol, skip_instance_cache=True, **self.options)


@dataclass(frozen=True, slots=True)
class Workspace:
    """A scenario's folder, the checkout whose command line works in it, and its results so far."""

    checkout: Path
    folder: Path
    output: Output
    names: SettingNames
    environment: Mapping[str, str]
    commands: list[dict[str, object]] = field(default_factory=list)

    def prompts(self, columns: Columns, name: str = "prompts.parquet") -> None:
        """Write a table of prompts."""
        renamed = {self.names.current(column): values for column, values in columns.items()}
        pq.write_table(pa.table(renamed), self.folder / name)

    def job(self, name: str, **settings: object) -> str:
        """Write a small job, which has its name as its run id, and return its file's name."""
        own = {"name": name, "run_id": name, "output": self.output.uri}
        return self.job_file({**SETTINGS, **own, **settings})

    def job_file(self, settings: Mapping[str, object]) -> str:
        """Write a job of these settings, without those that are None; return its file's name."""
        present = {name: value for name, value in settings.items() if value is not None}
        file = self.folder / f"{settings['name']}.yaml"
        file.write_text(yaml.safe_dump(self.names.rename(present)), encoding="utf-8")
        return file.name

    def imagekiln(self, *arguments: str) -> None:
        """Run a command of the command line, and record how it ended and what it printed."""
        ended = subprocess.run(
            [self.checkout / ".venv/bin/imagekiln", *arguments],
            cwd=self.folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        self.commands.append(
            {
                "command": shlex.join(arguments),
                "exit_code": ended.returncode,
                "stdout": _timeless(ended.stdout) if arguments[0] != "render" else ended.stdout,
                "stderr": _timeless(_last_message(ended.stderr)),
            }
        )

    def run_uri(self, name: str) -> str:
        """A run under the output, as commands name it."""
        return f"{self.output.uri}/{name}"


def environment(cache: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The variables of every command. Compiled Python goes to `cache`, which saves seconds."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    fixed = {
        "PYTHONPYCACHEPREFIX": str(cache / "pyc"),
        "PYTHONPATH": "python",  # in the scenario's folder, for checks of the user's own
        "SOURCE_DATE_EPOCH": "1790000000",  # one time for all plans
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "KUBECONFIG": os.devnull,
    }
    return {**own, **fixed, **more}


def _last_message(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line and not line.startswith(PROGRESS)]
    return lines[-1] if lines else ""


def _timeless(text: str) -> str:
    return TIME.sub("#", text)
