"""Kubernetes and Argo: installed, running and new enough."""

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.workflows.doctor.check_argo import (
    check_argo_version,
    check_controller,
    check_crds,
    check_kubernetes,
    check_server,
)
from tests.kube import Kube

DEPLOYMENTS = "apis/apps/v1/namespaces/imagekiln/deployments"


def _controller(
    kube: Kube,
    ready: int,
    image: str = "quay.io/argoproj/workflow-controller:v4.1.2",
    args: tuple[str, ...] = (),
    namespace: str = "argo",
) -> None:
    spec = {"template": {"spec": {"containers": [{"image": image, "args": list(args)}]}}}
    about = {"namespace": namespace, "name": "workflow-controller"}
    status = {"readyReplicas": ready}
    kube.put(DEPLOYMENTS, f"{namespace}-controller", metadata=about, spec=spec, status=status)


def test_api_that_does_not_answer_is_try_again(kube: Kube) -> None:
    kube.down = True
    with pytest.raises(TryAgain):
        check_kubernetes(kube.needs())


def test_missing_argo_is_wrong(kube: Kube) -> None:
    kube.served = ()
    finding = check_crds(kube.needs())
    assert finding.verdict == "wrong"
    assert "cronworkflows, workfloweventbindings, workflows, workflowtemplates" in finding.says
    assert "Install Argo" in str(finding.remedy)


@pytest.mark.parametrize(
    ("args", "namespace", "ready", "verdict"),
    [
        ((), "argo", 1, "ok"),
        ((), "argo", 0, "wrong"),
        (("--namespaced", "--managed-namespace", "imagekiln"), "argo", 1, "ok"),
        (("--namespaced", "--managed-namespace=imagekiln"), "argo", 1, "ok"),
        (("--namespaced", "--managed-namespace=theirs"), "imagekiln", 1, "unknown"),
        (("--namespaced",), "theirs", 1, "unknown"),
    ],
)
def test_controller_must_watch_the_namespace_and_be_ready(
    kube: Kube, args: tuple[str, ...], namespace: str, ready: int, verdict: str
) -> None:
    _controller(kube, ready, args=args, namespace=namespace)
    assert check_controller(kube.needs()).verdict == verdict
    kube.unreadable = {"deployments"}
    assert check_controller(kube.needs()).verdict == "unknown"


def test_controller_of_another_team_does_not_count(kube: Kube) -> None:
    theirs = ("--namespaced",)
    _controller(kube, 0, "quay.io/argoproj/workflow-controller:v3.4.1", theirs, "aaa")
    _controller(kube, 1, args=theirs, namespace="imagekiln")
    finding = check_controller(kube.needs())
    assert finding.says == "Argo's controller runs: deployment workflow-controller -n imagekiln."
    assert check_argo_version(kube.needs()).verdict == "ok"


def test_argo_server_must_answer(kube: Kube) -> None:
    assert check_server(kube.connection()).verdict == "wrong"
    kube.argo = "v4.1.2"
    assert check_server(kube.connection()).says == f"Argo's server answers at {kube.url}."


@pytest.mark.parametrize(
    ("version", "verdict"), [("v3.5.13", "wrong"), ("v3.6.0", "ok"), ("v4.1.2+abc", "ok")]
)
def test_argo_before_3_6_is_wrong(kube: Kube, version: str, verdict: str) -> None:
    kube.argo = version
    finding = check_argo_version(kube.needs(server=kube.connection()))
    assert (finding.verdict, version in finding.says) == (verdict, True)
    tag = version.partition("+")[0]
    _controller(kube, 1, f"registry:5000/argoproj/workflow-controller:{tag}@sha256:00")
    finding = check_argo_version(kube.needs())
    assert (finding.verdict, tag in finding.says) == (verdict, True)
