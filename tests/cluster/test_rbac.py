"""Each verb of the shipped roles is needed, and no pod has a token that it does not need."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml

from imagekiln.steps.errors import KilnError
from imagekiln.workflows.client.api import ArgoApi, KubernetesApi
from imagekiln.workflows.client.client import apply
from imagekiln.workflows.doctor.cluster_view import AccessRight
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow import build_event_binding
from tests.cluster import jobs, kube
from tests.cluster.rbac import (
    ACCOUNT,
    OPERATIONS,
    TEST_LABEL,
    Account,
    Right,
    shipped_rights,
)

RIGHTS = list(shipped_rights())
POD = yaml.safe_load(
    f"""
apiVersion: v1
kind: Pod
metadata: {{name: {ACCOUNT}, labels: {{imagekiln.dev/test: rbac}}}}
spec:
  automountServiceAccountToken: false
  restartPolicy: Never
  securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: main
      image: {load_profile("test").steps.image}
      resources: {{requests: {{cpu: 50m, memory: 64Mi}}, limits: {{memory: 256Mi}}}}
      securityContext:
        allowPrivilegeEscalation: false
        capabilities: {{drop: [ALL]}}
        readOnlyRootFilesystem: true
"""
)
KINDS_OF_TESTS = (
    "workflows,workflowtemplates,cronworkflows,workfloweventbindings,workflowtaskresults,"
    "pods,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
)


def _test_object(kind: str, **fields: object) -> Json:
    group = "" if kind == "ServiceAccount" else "rbac.authorization.k8s.io/"
    metadata = {"name": ACCOUNT, "labels": TEST_LABEL}
    return {"apiVersion": f"{group}v1", "kind": kind, "metadata": metadata, **fields}


@pytest.fixture(scope="module")
def account(argo: ArgoApi) -> Iterator[Account]:
    """An account without rights, and what its operations are tried on."""
    assert isinstance(argo, KubernetesApi)
    apply(jobs.job(), argo)
    argo.apply(build_event_binding(load_profile("test"), kube.NAMESPACE))
    kube.apply([_test_object("ServiceAccount"), POD])
    kube.kubectl(
        "wait", "pod", ACCOUNT, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=180s"
    )
    try:
        yield Account()
    finally:
        label = "=".join(*TEST_LABEL.items())
        kube.kubectl("delete", KINDS_OF_TESTS, "--selector", label, "--wait=false")


def _grant(account: Account, rights: list[Right]) -> None:
    """Give the account these rights and no others, and wait until they count."""
    is_global = rights[0].role == "imagekiln-doctor"
    role = "ClusterRole" if is_global else "Role"
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": kube.NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": ACCOUNT}
    binding = _test_object(f"{role}Binding", roleRef=reference, subjects=[subject])
    kube.apply([_test_object(role, rules=[right.rule for right in rights]), binding])

    granted = {right.key for right in rights}
    questions = [right for right in RIGHTS if right.role == rights[0].role and not right.names]

    def is_in_force() -> bool:
        return all(
            account.view.is_allowed(AccessRight(right.verb, right.resource, right.group))
            == (right.key in granted)
            for right in questions
        )

    kube.wait_until(30, "the rights of the test's account", is_in_force)


@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: right.key)
def test_each_verb_of_a_role_is_needed(right: Right, account: Account) -> None:
    operation = OPERATIONS[right.key]
    all_of_role = [item for item in RIGHTS if item.role == right.role]
    _grant(account, all_of_role)
    operation(account)

    without = [item for item in all_of_role if item != right]
    _grant(account, without)
    with pytest.raises((KilnError, AssertionError)):
        operation(account)


@pytest.mark.parametrize("file", ["tune.yaml", "warm-node.yaml"])
def test_pod_that_asks_nothing_of_kubernetes_has_no_token(file: str) -> None:
    text = (Path(__file__).parents[2] / "workflows/cluster/gpus" / file).read_text("utf-8")
    for manifest in yaml.safe_load_all(text):
        if manifest["kind"] not in ("Job", "Deployment"):
            continue
        spec = cast("kube.Object", kube.get_field(manifest, "spec", "template", "spec"))
        spec.pop("priorityClassName", None)  # which the file has beside the pod
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "rbac-"},
            "spec": {"restartPolicy": "Never", **spec},
        }
        command = ("create", "--dry-run=server", "--output", "yaml", "--filename", "-")
        admitted = yaml.safe_load(kube.kubectl(*command, stdin=yaml.safe_dump(pod)))
        assert "serviceAccountToken" not in yaml.safe_dump(admitted["spec"])
