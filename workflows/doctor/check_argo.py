"""Checks of Kubernetes and Argo: reachable, installed, running, and new enough."""

import re
from contextlib import suppress

from imagekiln.steps.errors import KilnError
from imagekiln.workflows.client.api import ARGO_API_PATH, ARGO_KINDS
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor.check import (
    DoctorCheck,
    Needs,
    doctor_check,
    ok,
    unknown,
    wrong,
)
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind, Unreadable
from imagekiln.workflows.objects import (
    Json,
    get_list,
    get_mapping,
    get_mappings,
    object_name,
    object_namespace,
)

MIN_ARGO_VERSION = (3, 6)
DEPLOYMENTS = ResourceKind("apis/apps/v1", "deployments")  # in all namespaces
# The controller's Deployment in Argo's manifests, and in its Helm chart.
CONTROLLERS = ("workflow-controller", "argo-workflows-workflow-controller")
# Arguments of the controller.
NAMESPACED_FLAG = "--namespaced"
MANAGED_NAMESPACE_FLAG = "--managed-namespace"
INSTALL_ARGO = (
    "Install Argo Workflows 3.6 or later: "
    "https://argo-workflows.readthedocs.io/en/stable/installation/"
)


@doctor_check("kubernetes")
def check_kubernetes(needs: Needs) -> DoctorCheck:
    """Check that the Kubernetes API responds. Raises TryAgain if it does not."""
    return ok(f"Kubernetes {needs.view.version()} answers at {needs.view.url}.")


@doctor_check("argo-crds")
def check_crds(needs: Needs) -> DoctorCheck:
    """Check that the API serves Argo's kinds."""
    kinds = {kind.plural for kind in ARGO_KINDS.values()}
    missing = sorted(kinds - needs.view.resource_names(ARGO_API_PATH))
    if missing:
        return wrong(f"The cluster does not serve Argo's {', '.join(missing)}.", INSTALL_ARGO)
    return ok("Argo's CustomResourceDefinitions are installed.")


@doctor_check("argo-controller")
def check_controller(needs: Needs) -> DoctorCheck:
    """Check that a controller that watches the namespace is running, by its Deployment."""
    watching = _watching_controllers(needs.view)
    if not watching:
        return unknown(
            "No Deployment that you can read is a controller that watches this namespace.",
            "Submit a job: if it stays pending, start Argo's workflow-controller with this "
            "namespace among those it watches.",
        )
    ready = [each for each in watching if get_mapping(each, "status").get("readyReplicas")]
    controller = (ready or watching)[0]
    place = f"deployment {object_name(controller)} -n {object_namespace(controller)}"
    if ready:
        return ok(f"Argo's controller runs: {place}.")
    return wrong(f"No pod is ready: {place}.", f"See why: `kubectl describe {place}`.")


@doctor_check("argo-server")
def check_server(server: ApiConnection) -> DoctorCheck:
    """Check that the Argo server for submission responds, and accepts the login."""
    try:
        server.request("GET", "api/v1/version")
    except KilnError as error:
        return wrong(
            str(error), "Correct ARGO_SERVER and ARGO_TOKEN, or unset both to use kubeconfig."
        )
    return ok(f"Argo's server answers at {server.url}.")


@doctor_check("argo-version")
def check_argo_version(needs: Needs) -> DoctorCheck:
    """Check that Argo is new enough for the templates, by its controller's image or its server."""
    versions = [_image_tag(controller) for controller in _watching_controllers(needs.view)]
    if needs.server is not None:
        with suppress(KilnError):  # as reported by argo-server
            versions.append(str(needs.server.request("GET", "api/v1/version").get("version")))
    for version in versions:
        if match := re.match(r"v?(\d+)\.(\d+)", version):
            if (int(match[1]), int(match[2])) < MIN_ARGO_VERSION:
                return wrong(f"Argo is {version}; the templates need 3.6 or later.", INSTALL_ARGO)
            return ok(f"Argo is {version}.")
    return unknown(
        "Nothing that you can read shows Argo's version.",
        "Set ARGO_SERVER, whose server reports it; 3.6 or later is needed.",
    )


def _image_tag(controller: Json) -> str:
    """Return the tag of the controller's image, which is its version."""
    image = str(_containers(controller)[0].get("image", ""))
    return image.partition("@")[0].rpartition(":")[2]


def _watching_controllers(view: ClusterView) -> list[Json]:
    """Return the controllers that watch the namespace; none if the user may not read them."""
    controllers: list[Json] = []
    with suppress(Unreadable):
        for name in CONTROLLERS:
            controllers += view.list_objects(DEPLOYMENTS, f"fieldSelector=metadata.name={name}")
    return [each for each in controllers if _watches_namespace(each, view.namespace)]


def _watches_namespace(controller: Json, namespace: str) -> bool:
    """Return whether a controller runs the workflows of a namespace, by its arguments."""
    arguments = [str(item) for each in _containers(controller) for item in get_list(each, "args")]
    words = " ".join(arguments).replace("=", " ").split()
    if NAMESPACED_FLAG not in words:
        return True
    if MANAGED_NAMESPACE_FLAG in words:
        value = words.index(MANAGED_NAMESPACE_FLAG) + 1
        return words[value : value + 1] == [namespace]
    return object_namespace(controller) == namespace


def _containers(controller: Json) -> list[Json]:
    return get_mappings(controller, "spec", "template", "spec", "containers")
