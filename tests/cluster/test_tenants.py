"""Two teams on one cluster, each with a namespace of its own, by the overlay that the docs show."""

import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml

from tests.cluster import kube

DOCS = Path(__file__).parents[2] / "docs/cluster.md"
EXAMPLE = r"```yaml\n(.{0,200}\nnamespace: team-a\n.*?)```"
TEAM = "team-a"
VERBS = ("get", "create", "delete")
RESOURCES = (
    "secrets",
    "configmaps",
    "pods",
    "pods/exec",
    "workflows.argoproj.io",
    "workflowtemplates.argoproj.io",
    "workflowtaskresults.argoproj.io",
)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The service accounts of a second team."""
    cluster = tmp_path_factory.mktemp("manifests") / "cluster"
    shutil.copytree(kube.OVERLAY.parents[1], cluster)
    overlay = cluster / "overlays" / TEAM
    overlay.mkdir()
    documented = re.search(EXAMPLE, DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert documented
    (overlay / "kustomization.yaml").write_text(documented[1], encoding="utf-8")
    kube.kubectl("apply", "-k", str(overlay), namespace=TEAM)
    objects = yaml.safe_load_all(kube.kubectl("kustomize", str(overlay)))
    yield [item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"]
    kube.kubectl("delete", "clusterrolebinding", f"imagekiln-doctor-{TEAM}")
    kube.kubectl("delete", "namespace", TEAM, "--wait=false")


def test_accounts_of_a_team_can_do_nothing_in_the_namespace_of_another(accounts: list[str]) -> None:
    assert "imagekiln-submitter" in accounts
    allowed = [
        f"{team} {account}: {verb} {resource}"
        for team, other in ((TEAM, kube.NAMESPACE), (kube.NAMESPACE, TEAM))
        for account, verb, resource in product(accounts, VERBS, RESOURCES)
        if kube.may(verb, resource, account=f"{team}:{account}", namespace=other)
    ]
    assert allowed == []


@pytest.mark.parametrize("team", [TEAM, kube.NAMESPACE])
def test_each_team_keeps_the_rights_of_its_own(team: str, accounts: list[str]) -> None:
    assert accounts
    submitter = f"{team}:imagekiln-submitter"
    assert kube.may("create", "workflows.argoproj.io", account=submitter, namespace=team)
    assert not kube.may("get", "secrets", account=submitter, namespace=team)
    assert kube.may("list", "nodes", account=submitter, namespace=team)
