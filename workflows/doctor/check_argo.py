"""Kubernetes and Argo: whether they answer, are installed, run, and are new enough."""

import re
from collections.abc import Sequence
from contextlib import suppress

from imagekiln.steps.errors import KilnError
from imagekiln.workflows.client.api import ARGO_API_PATH, ARGO_KINDS
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor.check import (
    DoctorCheck,
    Unreadable,
    doctor_check,
    ok,
    unknown,
    wrong,
)
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.objects import (
    Json,
    get_list,
    get_mapping,
    get_mappings,
    object_name,
    object_namespace,
)

MIN_ARGO_VERSION = (3, 6)
DEPLOYMENTS = ResourceKind("apis/apps/v1", "deployments", namespaced=True)
# The controller's Deployment by Argo's own manifests, and by its Helm chart.
CONTROLLERS = ("workflow-controller", "argo-workflows-workflow-controller")
# Arguments of the controller.
NAMESPACED_FLAG = "--namespaced"
MANAGED_NAMESPACE_FLAG = "--managed-namespace"
WATCH_ADVICE = "Start Argo's workflow-controller with this namespace among those it watches."
INSTALL_ARGO = (
    "Install Argo Workflows 3.6 or later: "
    "https://argo-workflows.readthedocs.io/en/stable/installation/"
)


@doctor_check("kubernetes")
def check_kubernetes(view: ClusterView) -> DoctorCheck:
    """The Kubernetes API answers. Raises TryAgain if it does not."""
    return ok(f"Kubernetes {view.version()} answers at {view.url}.")


@doctor_check("argo-crds")
def check_crds(view: ClusterView) -> DoctorCheck:
    """The API serves Argo's kinds."""
    kinds = {kind.plural for kind in ARGO_KINDS.values()}
    missing = sorted(kinds - view.resource_names(ARGO_API_PATH))
    if missing:
        return wrong(f"The cluster does not serve Argo's {', '.join(missing)}.", INSTALL_ARGO)
    return ok("Argo's CustomResourceDefinitions are installed.")


@doctor_check("argo-controller")
def check_controller(view: ClusterView) -> DoctorCheck:
    """A controller runs that watches the namespace, by its Deployment."""
    controllers = _list_controllers(view)
    watching = [each for each in controllers if _watches_namespace(each, view.namespace)]
    if watching:
        return _find_ready_controller(watching)
    if controllers:
        return wrong(f"{_describe(controllers[0])} watches other namespaces only.", WATCH_ADVICE)
    return unknown(
        "No Deployment that you can read shows whether a controller runs.",
        "Submit one: `imagekiln submit JOB`. If it stays pending, no controller runs for this "
        "namespace.",
    )


@doctor_check("argo-server")
def check_server(server: ApiConnection) -> DoctorCheck:
    """The Argo server that the job would be submitted to answers, and accepts the login."""
    try:
        server.request("GET", "api/v1/version")
    except KilnError as error:
        return wrong(
            str(error),
            "Correct ARGO_SERVER and ARGO_TOKEN, or unset both to use kubeconfig.",
        )
    return ok(f"Argo's server answers at {server.url}.")


@doctor_check("argo-version")
def check_argo_version(view: ClusterView, server: ApiConnection | None) -> DoctorCheck:
    """Argo is new enough for the templates, by its controller's image or its server."""
    sources = {"its controller's image": _controller_version(view)}
    if server is not None:
        with suppress(KilnError):  # which argo-server reports
            answer = server.request("GET", "api/v1/version")
            sources["its server"] = str(answer.get("version", ""))
    for source, version in sources.items():
        match = re.match(r"v?(\d+)\.(\d+)", version)
        if match is None:
            continue
        if (int(match[1]), int(match[2])) < MIN_ARGO_VERSION:
            minimum = ".".join(map(str, MIN_ARGO_VERSION))
            return wrong(
                f"Argo is {version}, according to {source}; the templates need {minimum} or later.",
                INSTALL_ARGO,
            )
        return ok(f"Argo is {version}, according to {source}.")
    return unknown(
        "Nothing that you can read shows Argo's version.",
        "Set ARGO_SERVER, whose server reports it; 3.6 or later is needed.",
    )


def _controller_version(view: ClusterView) -> str:
    """Return the tag of the image of the controller that watches the namespace, if any."""
    for controller in _list_controllers(view):
        if _watches_namespace(controller, view.namespace):
            for container in _controller_containers(controller):
                return str(container.get("image", "")).partition("@")[0].rpartition(":")[2]
    return ""


def _list_controllers(view: ClusterView) -> list[Json]:
    """Return every controller, or none if the user may not read Deployments."""
    controllers: list[Json] = []
    try:
        for name in CONTROLLERS:
            query = f"fieldSelector=metadata.name={name}"
            controllers += view.list_objects(DEPLOYMENTS, query, everywhere=True)
    except Unreadable:
        return []
    return controllers


def _watches_namespace(controller: Json, namespace: str) -> bool:
    """Return whether a controller, by its arguments, runs the workflows of a namespace."""
    containers = _controller_containers(controller)
    arguments = [str(item) for container in containers for item in get_list(container, "args")]
    words = " ".join(arguments).replace("=", " ").split()
    if NAMESPACED_FLAG not in words:
        return True
    if MANAGED_NAMESPACE_FLAG in words:
        value = words.index(MANAGED_NAMESPACE_FLAG) + 1
        return words[value : value + 1] == [namespace]
    return object_namespace(controller) == namespace


def _find_ready_controller(controllers: Sequence[Json]) -> DoctorCheck:
    for controller in controllers:
        if get_mapping(controller, "status").get("readyReplicas"):
            return ok(f"{_describe(controller)} runs.")
    name = object_name(controllers[0])
    namespace = object_namespace(controllers[0])
    return wrong(
        f"{_describe(controllers[0])} has no ready pod.",
        f"See why: `kubectl describe deployment {name} -n {namespace}`.",
    )


def _describe(controller: Json) -> str:
    return f"Deployment {object_name(controller)} in namespace {object_namespace(controller)}"


def _controller_containers(controller: Json) -> list[Json]:
    return get_mappings(controller, "spec", "template", "spec", "containers")
