"""The shipped manifest that tunes: a pod finds the batch size, and planning freezes it."""

from pathlib import Path
from typing import cast
from uuid import uuid4

import fsspec
import yaml

from imagekiln.steps.job.tuning_file import read_tuning_file
from imagekiln.steps.plan.step import make_plan
from imagekiln.workflows.profiles.loader import load_profile
from tests.cluster import jobs, kube
from tests.cluster.kube import Object, get_field

MANIFEST = Path(__file__).parents[2] / "workflows/cluster/gpus/tune.yaml"
NAME = "imagekiln-tune"


def _manifest(job: str) -> Object:
    """The manifest as a user would edit it: the job's URI, the image and the resources."""
    manifest = cast("Object", yaml.safe_load(MANIFEST.read_text()))
    container = cast("Object", get_field(manifest, "spec", "template", "spec", "containers", 0))
    container["image"] = load_profile("test").generate.image
    container["args"] = ["tune", job, "--set", "device=cpu"]
    small: Object = {"memory": "2Gi", "nvidia.com/gpu": "1"}
    container["resources"] = {"requests": {"cpu": "500m"} | small, "limits": small}
    return manifest


def _final_condition() -> str | None:
    conditions = cast(
        "list[Object]", get_field(kube.get("job", NAME), "status", "conditions") or []
    )
    return next(
        (str(each["type"]) for each in conditions if each["type"] in {"Complete", "Failed"}), None
    )


def test_a_pod_tunes_beside_the_job_and_planning_freezes_what_it_found() -> None:
    folder = f"{jobs.BUCKET}/tuned-{uuid4().hex[:12]}"
    job = jobs.job(batch={}, device="cpu")
    with fsspec.open(f"{folder}/job.yaml", "wt") as file:
        yaml.safe_dump(job.model_dump(mode="json", exclude_unset=True), file)
    kube.kubectl("delete", "job", NAME, "--ignore-not-found")
    kube.apply([_manifest(f"{folder}/job.yaml")])
    log = f"job/{NAME}"
    assert kube.wait_until(300, "the pod tunes", _final_condition) == "Complete", kube.kubectl(
        "logs", log
    )
    (pod,) = kube.items("pods", "--selector", f"job-name={NAME}")
    assert str(get_field(pod, "spec", "nodeName")).startswith("gpu-")
    (entry,) = read_tuning_file(f"{folder}/tuning.yaml").entries
    tuned = jobs.job(prompts=job.prompts, device="cpu", batch={"tuning": f"{folder}/tuning.yaml"})
    (size,) = make_plan(tuned).plan.batch_sizes
    assert (size.width, size.height, size.images) == (entry.width, entry.height, entry.batch)
    kube.kubectl("delete", "job", NAME)
