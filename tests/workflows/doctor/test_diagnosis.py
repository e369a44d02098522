"""All checks of a job: as text, as JSON and by exit code."""

import json
import os
from pathlib import Path
from socket import socket

import pytest
import yaml
from click.testing import CliRunner, Result
from kubernetes.config import kube_config

from imagekiln.steps.job.reader import read_job
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.uri import BUNDLED_FOLDER
from imagekiln.workflows.cli.main import main
from imagekiln.workflows.doctor.diagnosis import diagnose
from tests.jobs import SHAPES
from tests.kube import Kube, put_repository

# Of a job with the profile `gpu`, in order.
EVERY_CHECK = [
    "kubernetes", "argo-crds", "argo-controller", "argo-version",
    "namespace", "your-rights", "service-accounts", "pod-rights", "store-credentials",
    "template", "quota", "limit-range", "artifact-repository",
    "gpu-nodes", "gpu-memory", "driver", "cpu-nodes",
    "model", "paths", "output", "prompts",
]  # fmt: skip

LOCAL_CHECKS = EVERY_CHECK[-4:]


@pytest.fixture
def job(kube: Kube, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job file whose cluster is the stand-in, by kubeconfig."""
    for name in ("ARGO_SERVER", "ARGO_BASE_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    # The library reads the variable once, when it is imported.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    (tmp_path / "kubeconfig").write_text(json.dumps(_kubeconfig(kube.url)))
    prompts = BUNDLED_FOLDER / "prompts.parquet"
    open_store(f"{s3_bucket}/prompts").create("a.parquet", prompts.read_bytes())
    put_repository(kube, os.environ["AWS_ENDPOINT_URL"], s3_bucket)
    values = {
        "name": "shapes",
        "prompts": f"{s3_bucket}/prompts/*.parquet",
        "output": f"{s3_bucket}/out",
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(values | {"model": SHAPES}))
    return str(tmp_path / "job.yaml")


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "clusters": [{"name": "stand-in", "cluster": {"server": url}}],
        "users": [{"name": "submitter", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "stand-in", "user": "submitter"}}],
        "current-context": "here",
    }


def _doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def _verdicts(result: Result) -> dict[str, str]:
    return {each["name"]: each["verdict"] for each in json.loads(result.stdout)["checks"]}


def test_cluster_that_lacks_nothing_exits_with_0(job: str) -> None:
    done = _doctor(job)
    assert done.exit_code == 0, done.output
    assert (
        "ok       gpu-nodes: 1 node with 2 nvidia.com/gpu (NVIDIA-H100-80GB-HBM3).\n" in done.stdout
    )
    assert "wrong " not in done.stdout.replace("0 wrong", "")


def test_every_check_is_made_in_order(job: str, kube: Kube) -> None:
    assert list(_verdicts(_doctor(job, "--format", "json"))) == EVERY_CHECK
    # Nothing is written to the cluster.
    assert all("accessreviews" in each for each in kube.requests if not each.startswith("GET"))


def test_missing_prerequisite_is_printed_with_its_remedy_and_exits_with_2(
    job: str, kube: Kube
) -> None:
    del kube.objects["api/v1/nodes/gpu-0"]
    done = _doctor(job)
    assert done.exit_code == 2
    assert (
        "wrong    gpu-nodes: No node advertises nvidia.com/gpu.\n"
        "         -> Install the device plugin that advertises it, such as "
    ) in done.stdout


def test_api_that_does_not_answer_exits_with_75_after_one_request(job: str, kube: Kube) -> None:
    kube.down = True
    done = _doctor(job)
    assert done.exit_code == 75
    assert [line.split(":")[0].split()[1] for line in done.stdout.splitlines()] == LOCAL_CHECKS
    assert "failed (503: down)" in done.stderr
    assert len(kube.requests) == 1


def test_without_kubeconfig_what_needs_no_cluster_is_checked(
    job: str, kube: Kube, tmp_path: Path
) -> None:
    (tmp_path / "kubeconfig").unlink()
    done = _doctor(job)
    assert done.exit_code == 2
    *checks, reason, remedy = done.stdout.splitlines()
    names = [line.split(":")[0].split()[1] for line in checks]
    assert names == LOCAL_CHECKS
    assert reason.startswith("wrong    kubernetes: kubeconfig: ")
    assert remedy.startswith("         -> Set KUBECONFIG; for commands other than doctor, --server")
    assert not done.stderr
    kube.argo = "v4.0.7"
    verdicts = _verdicts(_doctor(job, "--server", kube.url, "--format", "json"))
    assert (verdicts["argo-server"], verdicts["kubernetes"]) == ("ok", "wrong")


def test_what_the_user_cannot_read_is_never_wrong(job: str, kube: Kube) -> None:
    plurals = "namespaces nodes configmaps serviceaccounts resourcequotas workflowtemplates"
    kube.unreadable = {*plurals.split(), "workflows", "deployments"}
    done = _doctor(job, "--format", "json")
    assert done.exit_code == 0
    assert sum(verdict == "unknown" for verdict in _verdicts(done).values()) >= 8


def test_cluster_is_chosen_by_context(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGO_SERVER", "http://127.0.0.1:9")  # of another cluster
    assert _doctor(job, "--context", "here").exit_code == 0
    assert _doctor(job, "--context", "elsewhere").exit_code == 2


def test_what_a_profile_names_is_checked(job: str, kube: Kube, tmp_path: Path) -> None:
    own = "description: Ours\nlike: dra\ncache: {claim: models}\nqueue: {name: imagekiln}\n"
    (tmp_path / "own.yaml").write_text(f"{own}report_artifact: false\n")
    job_with_profile = read_job(job, [f"cluster.profile={tmp_path / 'own.yaml'}"])
    verdicts = {each.name: each.verdict for each in diagnose(job_with_profile, kube.connection())}
    assert "artifact-repository" not in verdicts
    expected = {"model-cache": "wrong", "queue": "wrong", "gpu-claim": "wrong", "gpu-nodes": "ok"}
    assert expected.items() <= verdicts.items()


def test_address_that_nothing_listens_at_is_named(job: str, tmp_path: Path) -> None:
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"https://127.0.0.1:{unused.getsockname()[1]}"
    (tmp_path / "kubeconfig").write_text(json.dumps(_kubeconfig(address)))
    done = _doctor(job)
    assert done.exit_code == 75
    assert [line.split(":")[0].split()[1] for line in done.stdout.splitlines()] == LOCAL_CHECKS
    assert f"{address}: did not answer (" in done.stderr
    assert "host=" not in done.stderr
    assert "Check the address and the network" in done.stderr
