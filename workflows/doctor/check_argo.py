"""Whether Kubernetes and Argo are there, alive, and new enough."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from imagekiln.steps.errors import KilnError
from imagekiln.workflows.argo import KINDS
from imagekiln.workflows.connection import Connection, Json
from imagekiln.workflows.doctor.check import Finding, Unseen, check, ok, unknown, wrong
from imagekiln.workflows.doctor.fields import name, part, parts, texts
from imagekiln.workflows.doctor.kubernetes_view import Kind, KubernetesView
from imagekiln.workflows.kubernetes_api import GROUP

OLDEST = (3, 6)
PHASE = "workflows.argoproj.io/phase"  # the controller's label on what it has taken up
RECENT = timedelta(days=1)
PATIENCE = timedelta(minutes=2)  # a living controller takes up a workflow within seconds
DEPLOYMENTS = Kind("apis/apps/v1", "deployments", namespaced=True)
WORKFLOWS = Kind(GROUP, "workflows", namespaced=True)
PODS = Kind("api/v1", "pods", namespaced=True)
CONTROLLERS = ("workflow-controller", "argo-workflows-workflow-controller")  # Argo's own manifests; its Helm chart
NAMESPACED, MANAGED = "--namespaced", "--managed-namespace"  # arguments of the controller's
WATCHING = (
    "Start Argo's workflow-controller, and let it watch this namespace. One that has an instanceID takes up only what "
    "is submitted by its server: set ARGO_SERVER."
)
INSTALL = "Install Argo Workflows 3.6 or later: https://argo-workflows.readthedocs.io/en/stable/installation/"


@check("kubernetes")
def kubernetes(view: KubernetesView) -> Finding:
    """The API answers. Raises TryAgain where it does not."""
    return ok(f"{view.version()} at {view.url}.")


@check("argo-crds")
def definitions(view: KubernetesView) -> Finding:
    """Argo's kinds are known to the API, which tells everyone what it serves."""
    missing = sorted({kind.plural for kind in KINDS.values()} - view.served(GROUP))
    if missing:
        return wrong(f"The cluster does not know Argo's {', '.join(missing)}.", INSTALL)
    return ok("Argo's kinds are known.")


@check("argo-controller")
def controller(view: KubernetesView) -> Finding:
    """A controller runs: by its Deployment where one may be read, else by what became of the newest workflows."""
    found = _deployments(view)
    serving = [each for each in found if _serves(each, view.namespace)]
    workflows = _workflows(view, needed=not serving)
    waiting = [each for each in workflows if PHASE not in texts(each, "metadata", "labels") and _age(each) > PATIENCE]
    if waiting:
        says = f"No controller has taken up workflow {name(waiting[0])}, which is {_age(waiting[0])} old."
        return wrong(says, WATCHING)
    for each in serving:
        if part(each, "status").get("readyReplicas"):
            return ok(f"{_where(each)} runs.")
    if serving:
        return wrong(f"{_where(serving[0])} has no pod that is ready.", "See why: kubectl describe its pods.")
    taken = [each for each in workflows if PHASE in texts(each, "metadata", "labels")]
    if taken and _age(taken[0]) < RECENT:
        return ok(f"A controller has taken up workflow {name(taken[0])}, which is {_age(taken[0])} old.")
    if found:
        return wrong(f"{_where(found[0])} watches other namespaces only.", WATCHING)
    return unknown("No workflow of the last day shows one.", "Submit one; if it stays without a phase, none runs.")


@check("argo-server")
def answering(server: Connection) -> Finding:
    """The server that the job would be submitted to answers, and knows who asks."""
    try:
        server.ask("GET", "api/v1/version")
    except KilnError as error:
        return wrong(str(error), "Correct ARGO_SERVER and ARGO_TOKEN; without them, commands go by kubeconfig.")
    return ok(f"{server.url} answers.")


@check("argo-version")
def version(view: KubernetesView, server: Connection | None) -> Finding:
    """Argo is not older than what our templates need."""
    for source, text in _versions(view, server):
        if found := re.match(r"v?(\d+)\.(\d+)", text):
            if (int(found[1]), int(found[2])) < OLDEST:
                return wrong(f"Argo is {text}, by {source}; templates need {'.'.join(map(str, OLDEST))}.", INSTALL)
            return ok(f"{text}, by {source}.")
    return unknown(
        "Argo's version is not to be seen.", "Set ARGO_SERVER, whose server says it; 3.6 or later is needed."
    )


def _versions(view: KubernetesView, server: Connection | None) -> Iterator[tuple[str, str]]:
    for each in _deployments(view):
        if not _serves(each, view.namespace):
            continue
        yield "its controller's image", _tag(parts(each, "spec", "template", "spec", "containers"))
    if server:
        yield "its server", _of_server(server)
    for pod in view.find(PODS, "labelSelector=app.kubernetes.io/part-of=imagekiln"):
        yield "its container in a pod", _tag(parts(pod, "spec", "initContainers"))


def _of_server(server: Connection) -> str:
    try:
        return str(server.ask("GET", "api/v1/version").get("version", ""))
    except KilnError:
        return ""  # it is not the server that is asked for; other signs may do


def _deployments(view: KubernetesView) -> list[Json]:
    """Every controller on the cluster, as far as one may see them."""
    try:
        wanted = (f"fieldSelector=metadata.name={each}" for each in CONTROLLERS)
        return [found for query in wanted for found in view.find(DEPLOYMENTS, query, everywhere=True)]
    except Unseen:
        return []


def _serves(controller: Json, namespace: str) -> bool:
    """Whether a controller takes up the workflows of a namespace: it may be told to watch but one."""
    lists = (each.get("args") for each in parts(controller, "spec", "template", "spec", "containers"))
    words = " ".join(str(word) for each in lists if isinstance(each, list) for word in each).replace("=", " ").split()
    if NAMESPACED not in words:
        return True
    if MANAGED in words:
        return words[words.index(MANAGED) + 1 :][:1] == [namespace]
    return part(controller, "metadata").get("namespace") == namespace


def _where(controller: Json) -> str:
    return f"{name(controller)} in namespace {part(controller, 'metadata').get('namespace')}"


def _workflows(view: KubernetesView, *, needed: bool) -> list[Json]:
    """The namespace's workflows, the newest first. Raises Unseen, but not where other signs will do."""
    try:
        return sorted(view.outlines(WORKFLOWS), key=_age)
    except Unseen:
        if needed:
            raise
        return []


def _tag(containers: Iterable[Json]) -> str:
    """The version in the name of an image of Argo's."""
    images = [str(each.get("image", "")) for each in containers]
    return next(
        (image.partition("@")[0].rpartition(":")[2] for image in images if "argo" in image or "workflow-c" in image), ""
    )


def _age(made: Mapping[str, object]) -> timedelta:
    created = str(part(made, "metadata")["creationTimestamp"])
    return timedelta(seconds=round((datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()))
