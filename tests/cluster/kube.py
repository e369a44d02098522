"""kubectl for tests: the cluster that KUBECONFIG names, and the namespace that the shipped manifests make."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import pytest
import yaml

T = TypeVar("T")
Object = dict[str, object]
NAMESPACE = "imagekiln"
OVERLAY = Path(__file__).parents[2] / "workflows/cluster/overlays/whole-cluster"
FAULTS = Path(__file__).parents[3] / "shared/cluster/cluster"  # makes machines and stores go away


def kubectl(*arguments: str, stdin: str | None = None, namespace: str = NAMESPACE) -> str:
    """What kubectl prints. Raises AssertionError with what it complains of."""
    done = subprocess.run(
        ["kubectl", "--namespace", namespace, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def get(*arguments: str) -> Object:
    """An object, or a list of them."""
    return cast("Object", json.loads(kubectl("get", *arguments, "--output", "json")))


def items(*arguments: str) -> list[Object]:
    """The objects of a list."""
    return cast("list[Object]", get(*arguments)["items"])


def at(found: object, *path: str | int) -> object:
    """What lies at a path in an object, or None."""
    for step in path:
        if isinstance(found, list) and isinstance(step, int):
            found = found[step] if step < len(found) else None
        elif isinstance(found, dict):
            found = found.get(step)
        else:
            return None
    return found


def pods(workflow: str, step: str | None = None) -> list[Object]:
    """A workflow's pods that are there now."""
    labels = f"workflows.argoproj.io/workflow={workflow}" + (
        f",imagekiln/step={step}" if step else ""
    )
    return items("pods", "--selector", labels)


def name(found: Object) -> str:
    """An object's name."""
    return str(at(found, "metadata", "name"))


def until(seconds: float, what: str, look: Callable[[], T | None], every: float = 1.0) -> T:
    """What `look` gives once it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(every)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


def fault(*arguments: str) -> None:
    """Break or mend something of the cluster, where there is a tool that can."""
    if not FAULTS.exists():
        pytest.skip(f"needs a tool that can do `{arguments[0]}` to this cluster")
    subprocess.run([str(FAULTS), *arguments], check=True, capture_output=True, timeout=180)


def manifests() -> list[Object]:
    """The shipped manifests, with the object store that the environment names."""
    found = cast("list[Object]", list(yaml.safe_load_all(kubectl("kustomize", str(OVERLAY)))))
    return [_here(each) for each in found] + [_credentials()]


def apply(objects: list[Object]) -> None:
    """Apply objects as they are."""
    kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(objects))


def _here(found: Object) -> Object:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    if name(found) == "imagekiln-defaults":
        found["data"] = cast("Object", found["data"]) | {"AWS_ENDPOINT_URL": endpoint}
    if name(found) == "artifact-repositories":
        scheme, _, host = endpoint.partition("://")
        store = cast("Object", yaml.safe_load(str(at(found, "data", "s3"))))
        settings = cast("Object", store["s3"]) | {"endpoint": host, "insecure": scheme == "http"}
        found["data"] = {"s3": yaml.safe_dump({"s3": settings})}
    return found


def _credentials() -> Object:
    keys = {
        "accesskey": os.environ["AWS_ACCESS_KEY_ID"],
        "secretkey": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    about = {"name": "s3-credentials", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": keys}
