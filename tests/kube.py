"""A stand-in for the Kubernetes API on loopback: it serves a dictionary of objects."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

from imagekiln.steps.job.reader import validate_job
from imagekiln.workflows.client.connect import argo_server_access
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor.check import Needs
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.objects import Json, get_mapping, get_texts, object_name
from imagekiln.workflows.profiles.loader import load_profile
from tests.servers import running

BASE = Path(__file__).parents[1] / "workflows/cluster/base"
SPACE = "namespaces/imagekiln"
ARGO = f"apis/argoproj.io/v1alpha1/{SPACE}"
CORE = f"api/v1/{SPACE}"
FOLDERS = {
    "Namespace": "api/v1/namespaces",
    "ServiceAccount": f"{CORE}/serviceaccounts",
    "ResourceQuota": f"{CORE}/resourcequotas",
    "LimitRange": f"{CORE}/limitranges",
    "ConfigMap": f"{CORE}/configmaps",
    "PriorityClass": "apis/scheduling.k8s.io/v1/priorityclasses",
}
SELECTOR_COMMA = re.compile(r",(?![^(]*\))")  # between terms, not in a list of values
KINDS = ("workflows", "workflowtemplates", "cronworkflows", "workfloweventbindings")
H100 = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/cuda.driver-version.full": "580.65.06",
}


@dataclass(slots=True)
class Kube:
    """A cluster: its objects by path, and what the user may not do there."""

    objects: dict[str, Json] = field(default_factory=dict)
    served: tuple[str, ...] = KINDS
    unreadable: set[str] = field(default_factory=set)  # plurals
    # Rights that the user lacks, or an account: "verb resource", "account: verb resource".
    refused: set[str] = field(default_factory=lambda: {"get secrets"})
    version: str = "v1.34.4"
    argo: str | None = None  # the version that Argo's server reports
    down: bool = False
    page: int = 1000
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def put(self, folder: str, name: str, **values: object) -> None:
        """Store an object, with its name in its metadata unless that has one."""
        metadata = {"name": name, **get_mapping(values, "metadata")}
        self.objects[f"{folder}/{name}"] = {**values, "metadata": metadata}

    def node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        taint: str = "",
        image: str = "",
        has: Mapping[str, str] | None = None,
    ) -> None:
        """Store a node of 32 cores, 256 GiB and a disk of 500, and what else it `has`."""
        taints = [{"key": taint, "value": "present", "effect": "NoSchedule"}] if taint else []
        resources = {"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "500Gi"}
        resources |= dict(has or {})
        status = {"allocatable": resources, "images": [{"names": [image]}] if image else []}
        metadata = {"labels": dict(labels or {})}
        self.put("api/v1/nodes", name, metadata=metadata, spec={"taints": taints}, status=status)

    def connection(self) -> ApiConnection:
        """A connection to the cluster."""
        return ApiConnection(argo_server_access(self.url, {}))

    def needs(
        self, profile: str | Path = "gpu", server: ApiConnection | None = None, **settings: object
    ) -> Needs:
        """What a job with this profile and these settings needs of the cluster."""
        values: dict[str, object] = {
            "name": "a",
            "prompts": "s3://a/b.csv",
            "output": "s3://datasets/a",
        }
        values["cluster"] = {"profile": str(profile)}
        job = validate_job({"model": {"id": "bundled:shapes"}} | values | settings)
        view = ClusterView(self.connection(), "imagekiln")
        return Needs(job, load_profile(str(profile)), view, server)


def healthy() -> Kube:
    """A cluster that lacks nothing for the profile `gpu`.

    The shipped manifests are applied; there is a CPU node, and a node with two H100s.
    """
    kube = Kube()
    for file in sorted(BASE.glob("*.yaml")):
        for manifest in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            folder = FOLDERS.get(manifest.get("kind"))
            if folder is not None:
                kube.objects[f"{folder}/{object_name(manifest)}"] = manifest
    kube.node("cpu-0")
    kube.node("gpu-0", H100, taint="nvidia.com/gpu", has={"nvidia.com/gpu": "2"})
    return kube


def put_repository(kube: Kube, endpoint: str, bucket: str, **settings: object) -> None:
    """Make a bucket at an endpoint Argo's artifact repository."""
    scheme, _, host = endpoint.partition("://")
    s3 = {"bucket": bucket.removeprefix("s3://"), "endpoint": host, "insecure": scheme == "http"}
    keys = {"accessKeySecret": {"name": "s3-credentials", "key": "accesskey"}}
    about = {"annotations": {"workflows.argoproj.io/default-artifact-repository": "s3"}}
    data = {"s3": yaml.safe_dump({"s3": s3 | keys | settings})}
    kube.put(f"{CORE}/configmaps", "artifact-repositories", metadata=about, data=data)


@contextmanager
def serving(kube: Kube) -> Iterator[Kube]:
    """The cluster, listening on loopback while the block runs."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), _handler(kube))) as kube.url:
        yield kube


Answer = tuple[int, Json]


def _handler(kube: Kube) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kube.requests.append(f"{self.command} {self.path}")
            path = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(path.query).items()}
            status, answer = _answer(
                kube, self.command, path.path.strip("/"), query, json.loads(body or b"{}")
            )
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        do_GET = do_POST = do_PATCH = handle_one  # noqa: N815  # names of the standard library

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    return Handler


def _answer(kube: Kube, verb: str, path: str, query: dict[str, str], body: Json) -> Answer:
    if kube.down:
        return 503, {"message": "down"}
    if "accessreviews" in path:
        return 201, {"status": {"allowed": _right(body) not in kube.refused}}
    assert verb == "GET", "doctor must not change the cluster"
    if path in ("version", "api/v1/version", "apis/argoproj.io/v1alpha1"):
        return _discover(kube, path)
    return _read(kube, path, query)


def _discover(kube: Kube, path: str) -> Answer:
    """The version of Kubernetes or of Argo's server, or the kinds of Argo that are installed."""
    if path == "version":
        return 200, {"gitVersion": kube.version}
    if path == "api/v1/version":
        return (200, {"version": kube.argo}) if kube.argo else (404, {"message": "not found"})
    if not kube.served:
        return 404, {}
    return 200, {"resources": [{"name": plural} for plural in kube.served]}


def _read(kube: Kube, path: str, query: dict[str, str]) -> Answer:
    if kube.unreadable & set(path.replace(f"{SPACE}/", "").split("/")):
        return 403, {"message": "forbidden"}
    if path in kube.objects:
        return 200, kube.objects[path]
    matches = [
        stored
        for stored_path, stored in kube.objects.items()
        if _is_in(stored_path, path) and _matches(stored, query)
    ]
    if not matches and "limit" not in query:
        return 404, {"message": f"{path} not found"}
    start = int(query.get("continue", "0"))
    end = start + min(kube.page, int(query["limit"]))
    metadata = {"continue": str(end)} if end < len(matches) else {}
    # An empty list of custom resources is null.
    return 200, {"items": matches[start:end] or None, "metadata": metadata}


def _is_in(path: str, folder: str) -> bool:
    """Whether an object's path is in the folder; one without a namespace holds those of all."""
    parent = path.rpartition("/")[0]
    return parent == folder or parent.replace(f"/{SPACE}/", "/") == folder


def _matches(stored: Json, query: dict[str, str]) -> bool:
    terms = SELECTOR_COMMA.split(query.get("labelSelector", ""))
    labels = get_texts(stored, "metadata", "labels")
    if not all(_has_label(labels, term) for term in terms if term):
        return False
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return not name or object_name(stored) == name


def _has_label(labels: Mapping[str, str], term: str) -> bool:
    """Whether labels match `key`, `!key`, `key=value` or `key in (value,value)`."""
    if match := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", term):
        key, operator, values = match.groups()
        return (labels.get(key) in values.split(",")) == (operator == "in")
    if term.startswith("!"):
        return term[1:] not in labels
    key, equals, value = term.partition("=")
    return labels.get(key) == value if equals else key in labels


def _right(body: Json) -> str:
    """The right that an access review asks for."""
    attributes = get_texts(body, "spec", "resourceAttributes")
    resource = "/".join(filter(None, (attributes["resource"], attributes.get("subresource"))))
    right = f"{attributes['verb']} {resource}"
    account = str(get_mapping(body, "spec").get("user", "")).rpartition(":")[2]
    return f"{account}: {right}" if account else right
