"""The logs of a workflow's pods."""

import pytest

from imagekiln.steps.errors import BadInput, Missing
from imagekiln.workflows.client.client import submit
from imagekiln.workflows.client.http import Forbidden, LoginRefused
from imagekiln.workflows.client.logs import logs
from imagekiln.workflows.objects import Json
from tests.workflows.client.postcards import NAMESPACE, postcards
from tests.workflows.memory import Memory


def shard_node(workflow: str, number: int, **values: object) -> Json:
    parameters = [{"name": "shard", "value": str(number)}]
    node: Json = {
        "id": f"{workflow}-{number}",
        "type": "Pod",
        "phase": "Running",
        "templateName": "generate",
        "inputs": {"parameters": parameters},
    }
    return node | values


def test_logs_are_of_all_pods_or_of_one_shards(argo: Memory) -> None:
    name = submit(postcards(), argo=argo).name
    argo.end(name, "Running", nodes={str(number): shard_node(name, number) for number in (0, 1)})
    argo.logged = {f"{name}-generate-1": ['time=1 level=INFO msg="exited" argo=true', "drawn"]}
    missing, drawn = logs(name, NAMESPACE, argo=argo)
    assert missing.startswith(f"generate 0: pod {name}-generate-0 has no log: ")
    assert drawn == "generate 1: drawn"
    assert list(logs(name, NAMESPACE, 1, argo)) == ["drawn"]
    with pytest.raises(Missing, match="no pod of shard 7"):
        list(logs(name, NAMESPACE, 7, argo))


KILLED = "OOMKilled (exit code 137)"
OVER_QUOTA = 'pods "postcards" is forbidden: exceeded quota: gpus'
EXECUTOR_LINE = 'time=1 level=INFO msg="exited" argo=true'


@pytest.mark.parametrize(
    ("node", "lines", "says"),
    [
        ({"phase": "Failed", "message": KILLED}, [EXECUTOR_LINE], f"Failed, {KILLED}"),
        ({"phase": "Error", "message": OVER_QUOTA, "type": "Retry"}, None, f"Error, {OVER_QUOTA}"),
        ({"phase": "Succeeded"}, [], "Succeeded"),  # Argo's server sends nothing
        ({"phase": "Succeeded"}, None, "Succeeded"),  # Kubernetes knows no such pod
    ],
    ids=["killed for memory", "never admitted", "gone for Argo", "gone for Kubernetes"],
)
def test_pod_without_a_log_is_explained(
    argo: Memory, node: Json, lines: list[str] | None, says: str
) -> None:
    name = submit(postcards(), argo=argo).name
    argo.end(name, "Running", nodes={"0": shard_node(name, 0, **node)})
    argo.logged = {} if lines is None else {f"{name}-generate-0": lines}
    (line,) = logs(name, NAMESPACE, 0, argo)
    assert line.startswith(f"pod {name}-generate-0 has no log ({says}). `archive_logs: true`")


@pytest.mark.parametrize("refusal", [Forbidden("access denied."), LoginRefused("log in.")])
def test_logs_that_may_not_be_read_are_a_failure(
    argo: Memory, monkeypatch: pytest.MonkeyPatch, refusal: BadInput
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refusal

    name = submit(postcards(), argo=argo).name
    argo.end(name, "Running", nodes={"0": shard_node(name, 0)})
    monkeypatch.setattr(argo, "logs", refuse)
    with pytest.raises(type(refusal)):
        list(logs(name, NAMESPACE, argo=argo))


def test_logs_that_are_followed_include_pods_that_start_later(argo: Memory) -> None:
    name = submit(postcards(), argo=argo).name
    argo.logged = {f"{name}-generate-0": ["drawn 0"]}
    lines = logs(name, NAMESPACE, argo=argo, follow=True, every=0.01)
    running = shard_node(name, 0, phase="Running")
    argo.end(name, "Running", nodes={"1": shard_node(name, 1, phase="Pending"), "0": running})
    assert next(lines) == "generate 0: drawn 0"
    argo.logged[f"{name}-generate-1"] = ["drawn 1"]
    nodes = {str(number): shard_node(name, number, phase="Succeeded") for number in (0, 1)}
    argo.end(name, "Succeeded", nodes=nodes)
    assert list(lines) == ["generate 1: drawn 1"]
