"""The command line against the cluster."""

import os
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType


def shell(
    *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.CompletedProcess[str]":
    """Run a command, through the Kubernetes API unless the environment names an Argo server."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ARGO_")}
    command = [sys.executable, "-m", "imagekiln", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**inherited, **environment}
    )
