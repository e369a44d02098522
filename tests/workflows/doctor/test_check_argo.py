"""Whether Kubernetes and Argo are there, alive and new enough."""

from datetime import UTC, datetime, timedelta

import pytest

from imagekiln.steps.errors import TryAgain
from imagekiln.workflows.doctor.check_argo import (
    check_argo_version,
    check_controller,
    check_crds,
    check_kubernetes,
    check_server,
)
from tests.kube import ARGO, CORE, Kube

DEPLOYMENTS = "apis/apps/v1/namespaces/imagekiln/deployments"


def _workflow(kube: Kube, age: timedelta, phase: str = "") -> None:
    created = (datetime.now(UTC) - age).isoformat().replace("+00:00", "Z")
    labels = {"workflows.argoproj.io/phase": phase} if phase else {}
    kube.put(
        f"{ARGO}/workflows", "shapes", metadata={"creationTimestamp": created, "labels": labels}
    )


def _controller(
    kube: Kube,
    ready: int,
    image: str = "quay.io/argoproj/workflow-controller:v4.1.2",
    args: tuple[str, ...] = (),
    namespace: str = "argo",
) -> None:
    spec = {"template": {"spec": {"containers": [{"image": image, "args": list(args)}]}}}
    about = {"namespace": namespace, "name": "workflow-controller"}
    kube.put(
        DEPLOYMENTS,
        f"{namespace}-controller",
        metadata=about,
        spec=spec,
        status={"readyReplicas": ready},
    )


def test_the_version_of_kubernetes_is_said(kube: Kube) -> None:
    assert check_kubernetes(kube.view()).says == f"v1.34.4 at {kube.url}."


def test_an_api_that_is_away_is_to_be_tried_again(kube: Kube) -> None:
    kube.down = True
    with pytest.raises(TryAgain):
        check_kubernetes(kube.view())


def test_argo_that_is_not_installed_is_wrong(kube: Kube) -> None:
    kube.served = ()
    found = check_crds(kube.view())
    assert found.verdict == "wrong"
    assert "cronworkflows, workfloweventbindings, workflows, workflowtemplates" in found.says
    assert found.remedy is not None
    assert "Install Argo" in found.remedy


def test_a_kind_that_is_not_installed_is_named(kube: Kube) -> None:
    kube.served = ("workflows", "workflowtemplates", "cronworkflows")
    assert check_crds(kube.view()).says == "The cluster does not know Argo's workfloweventbindings."


def test_argo_that_is_installed_needs_no_right_on_its_definitions(kube: Kube) -> None:
    kube.unreadable = {"customresourcedefinitions"}
    assert check_crds(kube.view()).verdict == "ok"


def test_a_controller_that_runs_is_found_by_its_deployment(kube: Kube) -> None:
    _controller(kube, ready=1)
    assert check_controller(kube.view()).says == "workflow-controller in namespace argo runs."


def test_a_controller_without_a_ready_pod_is_wrong(kube: Kube) -> None:
    _controller(kube, ready=0)
    assert check_controller(kube.view()).verdict == "wrong"


@pytest.mark.parametrize(
    ("args", "namespace", "verdict"),
    [
        (("--namespaced",), "imagekiln", "ok"),
        (("--namespaced", "--managed-namespace", "imagekiln"), "argo", "ok"),
        (("--namespaced", "--managed-namespace=imagekiln"), "argo", "ok"),
        (("--namespaced", "--managed-namespace=theirs"), "imagekiln", "wrong"),
        (("--namespaced",), "theirs", "wrong"),
    ],
)
def test_a_controller_may_watch_one_namespace_only(
    kube: Kube, args: tuple[str, ...], namespace: str, verdict: str
) -> None:
    _controller(kube, 1, args=args, namespace=namespace)
    assert check_controller(kube.view()).verdict == verdict


def test_another_teams_controller_neither_vouches_nor_accuses(kube: Kube) -> None:
    theirs = ("--namespaced",)
    _controller(kube, 0, "quay.io/argoproj/workflow-controller:v3.4.1", theirs, "aaa")
    _controller(kube, 1, args=theirs, namespace="imagekiln")
    assert check_controller(kube.view()).says == "workflow-controller in namespace imagekiln runs."
    assert check_argo_version(kube.view(), None).verdict == "ok"


def test_a_controller_that_runs_and_takes_nothing_up_is_wrong(kube: Kube) -> None:
    _controller(kube, ready=1)
    _workflow(kube, timedelta(minutes=9))
    found = check_controller(kube.view())
    assert found.verdict == "wrong"
    assert found.remedy is not None
    assert "instanceID" in found.remedy
    kube.unreadable = {"workflows"}
    assert check_controller(kube.view()).verdict == "ok"


def test_a_workflow_that_nobody_takes_up_shows_that_no_controller_runs(kube: Kube) -> None:
    kube.unreadable = {"deployments"}
    _workflow(kube, timedelta(minutes=9))
    found = check_controller(kube.view())
    assert found.verdict == "wrong"
    assert found.says == "No controller has taken up workflow shapes, which is 0:09:00 old."


def test_a_workflow_of_this_moment_may_still_be_taken_up(kube: Kube) -> None:
    _workflow(kube, timedelta(seconds=5))
    assert check_controller(kube.view()).verdict == "unknown"


def test_a_workflow_that_was_taken_up_shows_a_controller(kube: Kube) -> None:
    kube.unreadable = {"deployments"}
    _workflow(kube, timedelta(minutes=9), "Succeeded")
    assert check_controller(kube.view()).verdict == "ok"


def test_a_workflow_of_last_week_shows_nothing(kube: Kube) -> None:
    _workflow(kube, timedelta(days=7), "Succeeded")
    assert check_controller(kube.view()).verdict == "unknown"


def test_a_server_that_is_named_must_answer(kube: Kube) -> None:
    assert check_server(kube.connection()).verdict == "wrong"
    kube.argo = "v4.1.2"
    assert check_server(kube.connection()).says == f"{kube.url} answers."


@pytest.mark.parametrize(
    ("version", "verdict"), [("v3.5.13", "wrong"), ("v3.6.0", "ok"), ("v4.1.2+abc", "ok")]
)
def test_argo_before_3_6_is_wrong(kube: Kube, version: str, verdict: str) -> None:
    kube.argo = version
    found = check_argo_version(kube.view(), kube.connection())
    assert found.verdict == verdict
    assert version in found.says


def test_the_version_is_read_from_the_controllers_image(kube: Kube) -> None:
    _controller(kube, 1, "registry:5000/argoproj/workflow-controller:v3.4.1@sha256:00")
    found = check_argo_version(kube.view(), None)
    assert (found.verdict, found.says[:13]) == ("wrong", "Argo is v3.4.")


def test_the_version_is_read_from_a_pod(kube: Kube) -> None:
    about = {"labels": {"app.kubernetes.io/part-of": "imagekiln"}}
    spec = {"initContainers": [{"image": "quay.io/argoproj/argoexec:v3.7.2"}]}
    kube.put(f"{CORE}/pods", "shapes-plan", metadata=about, spec=spec)
    assert check_argo_version(kube.view(), None).says == "v3.7.2, by its container in a pod."


def test_a_version_that_nobody_says_is_unknown(kube: Kube) -> None:
    found = check_argo_version(kube.view(), kube.connection())
    assert found.verdict == "unknown"
    assert found.remedy is not None
    assert "ARGO_SERVER" in found.remedy
