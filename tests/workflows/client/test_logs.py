"""The logs of a workflow's pods."""

import pytest

from imagekiln.steps.errors import Missing
from imagekiln.workflows.client.client import submit
from imagekiln.workflows.client.logs import logs
from imagekiln.workflows.objects import Json
from tests.workflows.client.postcards import NAMESPACE, postcards
from tests.workflows.memory import Memory


def shard_node(workflow: str, number: int, **values: object) -> Json:
    parameters = [{"name": "shard", "value": str(number)}]
    return {
        "id": f"{workflow}-{number}",
        "type": "Pod",
        "templateName": "generate",
        "inputs": {"parameters": parameters},
        **values,
    }


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


def test_log_that_went_with_its_pod_is_explained(argo: Memory) -> None:
    name = submit(postcards(), argo=argo).name
    nodes = {str(number): shard_node(name, number, phase="Succeeded") for number in (0, 1)}
    argo.end(name, "Succeeded", nodes=nodes)
    argo.logged = {f"{name}-generate-0": [], f"{name}-generate-1": ["drawn"]}
    gone, drawn = logs(name, NAMESPACE, argo=argo)
    assert gone.startswith(f"generate 0: pod {name}-generate-0 has no log any more: Argo deletes")
    assert "archive_logs: true" in gone
    assert drawn == "generate 1: drawn"


def test_logs_that_are_followed_include_pods_that_start_later(argo: Memory) -> None:
    name = submit(postcards(), argo=argo).name
    argo.logged = {f"{name}-generate-{number}": [f"drawn {number}"] for number in (0, 1)}
    lines = logs(name, NAMESPACE, argo=argo, follow=True, every=0.01)
    argo.end(name, "Running", nodes={"0": shard_node(name, 0, phase="Running")})
    assert next(lines) == "generate 0: drawn 0"
    nodes = {str(number): shard_node(name, number, phase="Succeeded") for number in (0, 1)}
    argo.end(name, "Succeeded", nodes=nodes)
    assert list(lines) == ["generate 1: drawn 1"]
