"""kubectl for tests: the cluster of KUBECONFIG, and the namespace of the shipped manifests."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

import pytest
import yaml
from kubernetes.client import Configuration

T = TypeVar("T")
Object = dict[str, object]
NAMESPACE = "imagekiln"
OVERLAY = Path(__file__).parents[2] / "workflows/cluster/overlays/whole-cluster"
FAULTS = Path(__file__).parents[3] / "shared/cluster/cluster"  # stops nodes and stores


def kubectl(*arguments: str, stdin: str | None = None, namespace: str = NAMESPACE) -> str:
    """The output of kubectl. Raises AssertionError with its errors."""
    done = subprocess.run(
        ["kubectl", "--namespace", namespace, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def may(verb: str, resource: str, *, account: str, namespace: str) -> bool:
    """Whether a service account, as NAMESPACE:NAME, has a right in a namespace."""
    kind, _, part = resource.partition("/")
    user = f"system:serviceaccount:{account}"
    question = ["auth", "can-i", verb, kind, f"--subresource={part}", f"--as={user}"]
    done = subprocess.run(
        ["kubectl", "--namespace", namespace, *question],
        capture_output=True,
        text=True,
        check=False,
    )
    answer = done.stdout.strip()
    assert answer in ("yes", "no"), done.stderr
    return answer == "yes"


def with_token(configuration: Configuration, token: str) -> Configuration:
    """The same API, with the login of a token alone."""
    configuration.cert_file = configuration.key_file = configuration.refresh_api_key_hook = None
    configuration.api_key = {"authorization": f"Bearer {token}"}
    return configuration


def get(*arguments: str) -> Object:
    """An object, or a list of them."""
    return cast("Object", json.loads(kubectl("get", *arguments, "--output", "json")))


def items(*arguments: str) -> list[Object]:
    """The objects of a list."""
    return cast("list[Object]", get(*arguments)["items"])


def get_field(value: object, *path: str | int) -> object:
    """The value at a path in an object, or None."""
    for step in path:
        if isinstance(value, list) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        elif isinstance(value, dict):
            value = value.get(step)
        else:
            return None
    return value


def pods(workflow: str, step: str | None = None) -> list[Object]:
    """A workflow's pods that exist now."""
    labels = f"workflows.argoproj.io/workflow={workflow}" + (
        f",imagekiln.dev/step={step}" if step else ""
    )
    return items("pods", "--selector", labels)


def name(value: Object) -> str:
    """An object's name."""
    return str(get_field(value, "metadata", "name"))


def wait_until(seconds: float, what: str, look: Callable[[], T | None], every: float = 1.0) -> T:
    """The first result of `look` that is not empty."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := look():
            return value
        time.sleep(every)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


def send_signal(pod: str, signal: str) -> None:
    """Send a signal, such as SIGSTOP, to the process that generates in a pod, if it still runs."""
    code = (
        "import os,signal;"
        "pids=[p for p in os.listdir('/proc') if p.isdigit()];"
        "names={p:open(f'/proc/{p}/cmdline').read() for p in pids};"
        "[os.kill(int(p),signal." + signal + ") for p,n in names.items()"
        " if 'imagekiln' in n and 'generate' in n and 'argoexec' not in n]"
    )
    with suppress(AssertionError):  # the pod has ended
        kubectl("exec", pod, "--container", "main", "--", "python", "-c", code)


def inject_fault(*arguments: str) -> None:
    """Break or repair a part of the cluster, where there is a tool that can."""
    if not FAULTS.exists():
        pytest.skip(f"needs a tool that can do `{arguments[0]}` to this cluster")
    subprocess.run([str(FAULTS), *arguments], check=True, capture_output=True, timeout=180)


def manifests() -> list[Object]:
    """The shipped manifests, with the object store that the environment names."""
    objects = cast("list[Object]", list(yaml.safe_load_all(kubectl("kustomize", str(OVERLAY)))))
    return [_with_object_store(item) for item in objects] + [_credentials()]


def apply(objects: list[Object]) -> None:
    """Apply objects as they are."""
    kubectl("apply", "--filename", "-", stdin=yaml.safe_dump_all(objects))


def _with_object_store(value: Object) -> Object:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    if name(value) == "imagekiln-defaults":
        value["data"] = cast("Object", value["data"]) | {"AWS_ENDPOINT_URL": endpoint}
    if name(value) == "artifact-repositories":
        scheme, _, host = endpoint.partition("://")
        store = cast("Object", yaml.safe_load(str(get_field(value, "data", "s3"))))
        settings = cast("Object", store["s3"]) | {"endpoint": host, "insecure": scheme == "http"}
        value["data"] = {"s3": yaml.safe_dump({"s3": settings})}
    return value


def _credentials() -> Object:
    keys = {
        "accesskey": os.environ["AWS_ACCESS_KEY_ID"],
        "secretkey": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    about = {"name": "s3-credentials", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about, "stringData": keys}
