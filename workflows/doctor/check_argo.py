"""Whether Kubernetes and Argo are there, alive, and new enough."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from imagekiln.steps.errors import KilnError
from imagekiln.workflows.client.api import ARGO_KINDS
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.client.kubernetes import ARGO_API_PATH
from imagekiln.workflows.doctor.check import Finding, Unreadable, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.kube_fields import get_mapping, get_mappings, get_texts, object_name
from imagekiln.workflows.objects import Json

MIN_ARGO_VERSION = (3, 6)
PHASE_LABEL = "workflows.argoproj.io/phase"  # the controller's label on what it has taken up
RECENT_AGE = timedelta(days=1)
PICKUP_TIMEOUT = timedelta(minutes=2)  # a living controller takes up a workflow within seconds
DEPLOYMENTS = ResourceKind("apis/apps/v1", "deployments", namespaced=True)
WORKFLOWS = ResourceKind(ARGO_API_PATH, "workflows", namespaced=True)
PODS = ResourceKind("api/v1", "pods", namespaced=True)
CONTROLLERS = (
    "workflow-controller",
    "argo-workflows-workflow-controller",
)  # Argo's own manifests; its Helm chart
NAMESPACED_FLAG, MANAGED_NAMESPACE_FLAG = (
    "--namespaced",
    "--managed-namespace",
)  # arguments of the controller's
WATCH_ADVICE = (
    "Start Argo's workflow-controller, and let it watch this namespace. One that has an instanceID takes up only what "
    "is submitted by its server: set ARGO_SERVER."
)
INSTALL_ARGO = "Install Argo Workflows 3.6 or later: https://argo-workflows.readthedocs.io/en/stable/installation/"


@doctor_check("kubernetes")
def check_kubernetes(view: ClusterView) -> Finding:
    """The API answers. Raises TryAgain where it does not."""
    return ok(f"{view.version()} at {view.url}.")


@doctor_check("argo-crds")
def check_crds(view: ClusterView) -> Finding:
    """Argo's kinds are known to the API, which tells everyone what it serves."""
    missing = sorted(
        {kind.plural for kind in ARGO_KINDS.values()} - view.resource_names(ARGO_API_PATH)
    )
    if missing:
        return wrong(f"The cluster does not know Argo's {', '.join(missing)}.", INSTALL_ARGO)
    return ok("Argo's kinds are known.")


@doctor_check("argo-controller")
def check_controller(view: ClusterView) -> Finding:
    """A controller runs: by its Deployment where one may be read, else by what became of the newest workflows."""
    found = _find_controllers(view)
    serving = [each for each in found if _watches_namespace(each, view.namespace)]
    workflows = _newest_workflows(view, needed=not serving)
    waiting = [
        each
        for each in workflows
        if PHASE_LABEL not in get_texts(each, "metadata", "labels") and _age(each) > PICKUP_TIMEOUT
    ]
    if waiting:
        says = f"No controller has taken up workflow {object_name(waiting[0])}, which is {_age(waiting[0])} old."
        return wrong(says, WATCH_ADVICE)
    for each in serving:
        if get_mapping(each, "status").get("readyReplicas"):
            return ok(f"{_controller_location(each)} runs.")
    if serving:
        return wrong(
            f"{_controller_location(serving[0])} has no pod that is ready.",
            "See why: kubectl describe its pods.",
        )
    taken = [each for each in workflows if PHASE_LABEL in get_texts(each, "metadata", "labels")]
    if taken and _age(taken[0]) < RECENT_AGE:
        return ok(
            f"A controller has taken up workflow {object_name(taken[0])}, which is {_age(taken[0])} old."
        )
    if found:
        return wrong(
            f"{_controller_location(found[0])} watches other namespaces only.", WATCH_ADVICE
        )
    return unknown(
        "No workflow of the last day shows one.",
        "Submit one; if it stays without a phase, none runs.",
    )


@doctor_check("argo-server")
def check_server(server: ApiConnection) -> Finding:
    """The server that the job would be submitted to answers, and knows who asks."""
    try:
        server.request("GET", "api/v1/version")
    except KilnError as error:
        return wrong(
            str(error),
            "Correct ARGO_SERVER and ARGO_TOKEN; without them, commands go by kubeconfig.",
        )
    return ok(f"{server.url} answers.")


@doctor_check("argo-version")
def check_argo_version(view: ClusterView, server: ApiConnection | None) -> Finding:
    """Argo is not older than what our templates need."""
    for source, text in _argo_versions(view, server):
        if found := re.match(r"v?(\d+)\.(\d+)", text):
            if (int(found[1]), int(found[2])) < MIN_ARGO_VERSION:
                return wrong(
                    f"Argo is {text}, by {source}; templates need {'.'.join(map(str, MIN_ARGO_VERSION))}.",
                    INSTALL_ARGO,
                )
            return ok(f"{text}, by {source}.")
    return unknown(
        "Argo's version is not to be seen.",
        "Set ARGO_SERVER, whose server says it; 3.6 or later is needed.",
    )


def _argo_versions(view: ClusterView, server: ApiConnection | None) -> Iterator[tuple[str, str]]:
    for each in _find_controllers(view):
        if not _watches_namespace(each, view.namespace):
            continue
        yield (
            "its controller's image",
            _image_version(get_mappings(each, "spec", "template", "spec", "containers")),
        )
    if server:
        yield "its server", _server_version(server)
    for pod in view.list_objects(PODS, "labelSelector=app.kubernetes.io/part-of=imagekiln"):
        yield "its container in a pod", _image_version(get_mappings(pod, "spec", "initContainers"))


def _server_version(server: ApiConnection) -> str:
    try:
        return str(server.request("GET", "api/v1/version").get("version", ""))
    except KilnError:
        return ""  # it is not the server that is asked for; other signs may do


def _find_controllers(view: ClusterView) -> list[Json]:
    """Every controller on the cluster, as far as one may see them."""
    try:
        wanted = (f"fieldSelector=metadata.name={each}" for each in CONTROLLERS)
        return [
            found
            for query in wanted
            for found in view.list_objects(DEPLOYMENTS, query, everywhere=True)
        ]
    except Unreadable:
        return []


def _watches_namespace(controller: Json, namespace: str) -> bool:
    """Whether a controller takes up the workflows of a namespace: it may be told to watch but one."""
    lists = (
        each.get("args")
        for each in get_mappings(controller, "spec", "template", "spec", "containers")
    )
    words = (
        " ".join(str(word) for each in lists if isinstance(each, list) for word in each)
        .replace("=", " ")
        .split()
    )
    if NAMESPACED_FLAG not in words:
        return True
    if MANAGED_NAMESPACE_FLAG in words:
        return words[words.index(MANAGED_NAMESPACE_FLAG) + 1 :][:1] == [namespace]
    return get_mapping(controller, "metadata").get("namespace") == namespace


def _controller_location(controller: Json) -> str:
    return f"{object_name(controller)} in namespace {get_mapping(controller, 'metadata').get('namespace')}"


def _newest_workflows(view: ClusterView, *, needed: bool) -> list[Json]:
    """The namespace's workflows, the newest first. Raises Unseen, but not where other signs will do."""
    try:
        return sorted(view.list_metadata(WORKFLOWS), key=_age)
    except Unreadable:
        if needed:
            raise
        return []


def _image_version(containers: Iterable[Json]) -> str:
    """The version in the name of an image of Argo's."""
    images = [str(each.get("image", "")) for each in containers]
    return next(
        (
            image.partition("@")[0].rpartition(":")[2]
            for image in images
            if "argo" in image or "workflow-c" in image
        ),
        "",
    )


def _age(made: Mapping[str, object]) -> timedelta:
    created = str(get_mapping(made, "metadata")["creationTimestamp"])
    return timedelta(
        seconds=round((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds())
    )
