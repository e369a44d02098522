"""What needs each verb of the shipped roles: an operation that fails without it.

A verb that no operation needs does not belong in a role (`workflows/cluster/base/access.yaml`).
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import yaml

from imagekiln.workflows.client import client
from imagekiln.workflows.client.api import KubernetesApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.client import OWN_LABEL
from imagekiln.workflows.client.connect import argo_server_access, kubernetes_access
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor.check_access import (
    NAMESPACES,
    POD_ACCOUNT,
    RESULT_RIGHTS,
    SERVICE_ACCOUNTS,
)
from imagekiln.workflows.doctor.check_argo import DEPLOYMENTS
from imagekiln.workflows.doctor.check_nodes import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NODES,
    RESOURCE_SLICES,
)
from imagekiln.workflows.doctor.check_profile import (
    CONFIG_MAPS,
    LIMIT_RANGES,
    LOCAL_QUEUES,
    PRIORITY_CLASSES,
    QUOTAS,
    RUNTIME_CLASSES,
    VOLUME_CLAIMS,
)
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.objects import Json
from imagekiln.workflows.templates.workflow import API_VERSION, COMMON_LABELS
from tests.cluster import kube

CLUSTER = Path(__file__).parents[2] / "workflows/cluster"
FILES = (CLUSTER / "base/access.yaml", CLUSTER / "overlays/whole-cluster/doctor.yaml")
ACCOUNT = "imagekiln-rbac-test"
TEST_LABEL = {"imagekiln.dev/test": "rbac"}
USER = f"system:serviceaccount:{kube.NAMESPACE}:{ACCOUNT}"
EVENT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource, as a role has it."""

    role: str
    group: str
    resource: str
    verb: str
    names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The role, the verb and the resource."""
        return f"{self.role}: {self.verb} {self.resource}"

    @property
    def rule(self) -> Json:
        """The right as a rule of its own."""
        rule: Json = {
            "apiGroups": [self.group],
            "resources": [self.resource],
            "verbs": [self.verb],
        }
        return {**rule, "resourceNames": list(self.names)} if self.names else rule


def shipped_rights() -> Iterator[Right]:
    """Every right of every role that is shipped."""
    for file in FILES:
        for manifest in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            for rule in manifest.get("rules", ()):
                names = tuple(rule.get("resourceNames", ()))
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        role = manifest["metadata"]["name"]
                        yield Right(role, rule["apiGroups"][0], resource, verb, names)


class Account:
    """The ServiceAccount of the tests, and each API with its rights."""

    def __init__(self) -> None:
        """Take a token of the account, which exists."""
        token = kube.kubectl("create", "token", ACCOUNT).strip()
        self.kubernetes = ApiConnection(kube.with_token(kubernetes_access(), token))
        self.argo = KubernetesApi(self.kubernetes)
        environment = {**os.environ, "ARGO_TOKEN": token}
        server = argo_server_access(os.environ["ARGO_SERVER"], environment)
        self.server = ArgoServer(ApiConnection(server))

    @property
    def view(self) -> ClusterView:
        """The cluster as doctor sees it, which has read nothing yet."""
        return ClusterView(self.kubernetes, kube.NAMESPACE)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """The output of kubectl with the account's rights. Raises AssertionError."""
        return kube.kubectl("--as", USER, *arguments, stdin=stdin)


Operation = Callable[[Account], object]


def new_object(kind: str) -> Json:
    """A manifest of this kind, whose workflow waits and has no pod."""
    waits: Json = {"entrypoint": "wait", "templates": [{"name": "wait", "suspend": {}}]}
    specs: dict[str, Json] = {
        "Workflow": waits,
        "WorkflowTemplate": waits,
        "CronWorkflow": {"schedules": ["0 0 1 1 *"], "workflowSpec": waits},
        "WorkflowEventBinding": {"event": {"selector": "false"}},
    }
    manifest: Json = {"apiVersion": API_VERSION, "kind": kind, "metadata": _new_metadata()}
    return {**manifest, "spec": specs[kind]} if kind in specs else manifest


def _new_metadata() -> Json:
    return {
        "name": f"rbac-{uuid4().hex[:12]}",
        "namespace": kube.NAMESPACE,
        "labels": COMMON_LABELS | TEST_LABEL,
    }


def stored_object(kind: str) -> tuple[Json, str]:
    """Such an object, stored by an administrator, and its name."""
    manifest = new_object(kind)
    kube.apply([manifest])
    return manifest, kube.name(manifest)


def _on_stored(kind: str, use: Callable[[Account, Json, str], object]) -> Operation:
    def operation(account: Account) -> object:
        return use(account, *stored_object(kind))

    return operation


def _of_definitions(role: str, kind: str, plural: str) -> dict[str, Operation]:
    """What Imagekiln's commands and Argo's page do with a template, a schedule or a binding."""
    space = kube.NAMESPACE
    return {
        f"{role}: create {plural}": lambda account: account.argo.create(new_object(kind)),
        f"{role}: patch {plural}": _on_stored(kind, lambda a, stored, _: a.argo.apply(stored)),
        f"{role}: get {plural}": _on_stored(kind, lambda a, _, name: a.argo.get(kind, space, name)),
        f"{role}: list {plural}": lambda account: account.argo.list_objects(kind, space, OWN_LABEL),
        f"{role}: delete {plural}": _on_stored(
            kind, lambda a, _, name: a.argo.delete(kind, space, name)
        ),
    }


def _read(kind: ResourceKind, name: str) -> Operation:
    """As a check of `imagekiln doctor` reads an object, which need not exist."""
    return lambda account: account.view.get(kind, name)


def _list(kind: ResourceKind, selector: str = "") -> Operation:
    """As a check of `imagekiln doctor` reads a list."""
    return lambda account: account.view.list_objects(kind, selector)


def _watch_workflows(account: Account) -> None:
    """As Argo's page does, through its server."""
    stored_object("Workflow")
    path = f"api/v1/workflow-events/{kube.NAMESPACE}"
    record = json.loads(next(account.server.connection.stream_lines(path, {}, 10)))
    assert "result" in record, record


def _suspend_workflow(account: Account, _: Json, name: str) -> object:
    path = f"api/v1/workflows/{kube.NAMESPACE}/{name}/suspend"
    return account.server.connection.request("PUT", path, body={})


def _watch(resource: str) -> Operation:
    """As Argo's server does for logs and events, with the rights of whoever asks."""
    path = f"/api/v1/namespaces/{kube.NAMESPACE}/{resource}?watch=true&timeoutSeconds=1"
    return lambda account: account.kubectl("get", "--raw", path)


def _log(account: Account) -> str:
    return account.kubectl("logs", ACCOUNT)  # the pod of the tests


def _create_task_result(account: Account) -> str:
    """As Argo's program beside each step does."""
    return account.kubectl("create", "-f", "-", stdin=json.dumps(new_object("WorkflowTaskResult")))


def _patch_task_result(account: Account, _: Json, name: str) -> object:
    """As it does for a pod that has reported before. `kubectl patch` would read it first."""
    path = f"apis/{API_VERSION}/namespaces/{kube.NAMESPACE}/workflowtaskresults/{name}"
    return account.kubernetes.request(
        "PATCH", path, body={"progress": "1/1"}, content_type="application/merge-patch+json"
    )


def _apply_workflow(account: Account) -> str:
    """As Argo's program of a pod that creates a workflow does."""
    return account.kubectl("apply", "-f", "-", stdin=json.dumps(new_object("Workflow")))


def _apply_changed_workflow(account: Account, stored: Json, _: str) -> str:
    """As a further pod does, after the first was lost."""
    annotated = {**_new_metadata(), "name": kube.name(stored), "annotations": {"attempt": "1"}}
    manifest = {**stored, "metadata": annotated}
    return account.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


def _post_job(account: Account) -> None:
    """A job that is posted starts a workflow. Argo's server answers before it does."""
    request = uuid4().hex[:12]
    path = f"api/v1/events/{kube.NAMESPACE}/imagekiln-test"
    account.server.connection.request("POST", path, body={"request": request, "job": {}})
    name = f"imagekiln-test-{request}"

    def look() -> list[str]:
        return [name for item in kube.items("workflows") if kube.name(item) == name]

    kube.wait_until(EVENT_SECONDS, "a workflow of the event", look)
    kube.kubectl("delete", "workflow", name)


OPERATIONS: dict[str, Operation] = {
    "imagekiln-executor: create workflowtaskresults": _create_task_result,
    "imagekiln-executor: patch workflowtaskresults": _on_stored(
        "WorkflowTaskResult", _patch_task_result
    ),
    "imagekiln-further: create workflows": _apply_workflow,
    "imagekiln-further: get workflows": _on_stored(
        "Workflow", lambda account, _, name: account.kubectl("get", "workflow", name)
    ),
    "imagekiln-further: patch workflows": _on_stored("Workflow", _apply_changed_workflow),
    "imagekiln-sender: list workfloweventbindings": _post_job,
    "imagekiln-sender: get workflowtemplates": _post_job,
    "imagekiln-sender: create workflows": _post_job,
    "imagekiln-submitter: create workflows": lambda account: account.argo.create(
        new_object("Workflow")
    ),
    "imagekiln-submitter: get workflows": _on_stored(
        "Workflow", lambda account, _, name: client.get_status(name, kube.NAMESPACE, account.argo)
    ),
    "imagekiln-submitter: list workflows": lambda account: client.workflows(
        kube.NAMESPACE, account.argo
    ),
    "imagekiln-submitter: patch workflows": _on_stored(
        "Workflow", lambda account, _, name: client.stop(name, kube.NAMESPACE, account.argo)
    ),
    "imagekiln-submitter: delete workflows": _on_stored(
        "Workflow", lambda account, _, name: account.kubectl("delete", "workflow", name)
    ),
    "imagekiln-submitter: update workflows": _on_stored("Workflow", _suspend_workflow),
    "imagekiln-submitter: watch workflows": _watch_workflows,
    **_of_definitions("imagekiln-submitter", "WorkflowTemplate", "workflowtemplates"),
    **_of_definitions("imagekiln-submitter", "CronWorkflow", "cronworkflows"),
    **_of_definitions("imagekiln-submitter", "WorkflowEventBinding", "workfloweventbindings"),
    "imagekiln-submitter: update workflowtemplates": _on_stored(
        "WorkflowTemplate", lambda account, stored, _: account.server.apply(stored)
    ),
    "imagekiln-submitter: update cronworkflows": _on_stored(
        "CronWorkflow", lambda account, stored, _: account.server.apply(stored)
    ),
    "imagekiln-submitter: get pods": _log,
    "imagekiln-submitter: get pods/log": _log,
    "imagekiln-submitter: list pods": lambda account: account.kubectl("get", "pods"),
    "imagekiln-submitter: watch pods": _watch("pods"),
    "imagekiln-submitter: list events": lambda account: account.argo.pod_events(
        kube.NAMESPACE, ACCOUNT
    ),
    "imagekiln-submitter: watch events": _watch("events"),
    "imagekiln-submitter: get configmaps": _read(CONFIG_MAPS, "imagekiln-defaults"),
    "imagekiln-submitter: get persistentvolumeclaims": _read(VOLUME_CLAIMS, "models"),
    "imagekiln-submitter: get serviceaccounts": _read(SERVICE_ACCOUNTS, POD_ACCOUNT),
    "imagekiln-submitter: list limitranges": _list(LIMIT_RANGES),
    "imagekiln-submitter: list resourcequotas": _list(QUOTAS),
    "imagekiln-submitter: get resourceclaimtemplates": _read(CLAIM_TEMPLATES, "gpu"),
    "imagekiln-submitter: get localqueues": _read(LOCAL_QUEUES, "images"),
    "imagekiln-submitter: create localsubjectaccessreviews": lambda account: (
        account.view.is_allowed(RESULT_RIGHTS[0], POD_ACCOUNT)
    ),
    "imagekiln-doctor: get namespaces": _read(NAMESPACES, kube.NAMESPACE),
    "imagekiln-doctor: list nodes": _list(NODES),
    "imagekiln-doctor: get priorityclasses": _read(PRIORITY_CLASSES, "imagekiln-batch"),
    "imagekiln-doctor: get runtimeclasses": _read(RUNTIME_CLASSES, "nvidia"),
    "imagekiln-doctor: get deviceclasses": _read(DEVICE_CLASSES, "gpu.nvidia.com"),
    "imagekiln-doctor: list resourceslices": _list(RESOURCE_SLICES),
    "imagekiln-doctor: list deployments": _list(
        DEPLOYMENTS, "fieldSelector=metadata.name=workflow-controller"
    ),
}
