"""Objects that a profile and a job name: template, classes, claims, queue and semaphore."""

import re

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.api import ARGO_API_PATH
from imagekiln.workflows.doctor.check import DoctorCheck, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.objects import get_list, get_mapping, get_mappings, get_texts
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.workflow_template import (
    build_job_template,
    job_template_name,
    template_digest,
)

WORKFLOW_TEMPLATES = ResourceKind(ARGO_API_PATH, "workflowtemplates", namespaced=True)
CONFIG_MAPS = ResourceKind("api/v1", "configmaps", namespaced=True)
VOLUME_CLAIMS = ResourceKind("api/v1", "persistentvolumeclaims", namespaced=True)
LOCAL_QUEUES = ResourceKind("apis/kueue.x-k8s.io/v1beta2", "localqueues", namespaced=True)
RUNTIME_CLASSES = ResourceKind("apis/node.k8s.io/v1", "runtimeclasses")
PRIORITY_CLASSES = ResourceKind("apis/scheduling.k8s.io/v1", "priorityclasses")
SEMAPHORE_CONFIG_MAP = "imagekiln-gpus"
IMAGE_VOLUMES_SINCE = (1, 33)  # behind the feature gate ImageVolume
IMAGE_VOLUMES_BY_DEFAULT = (1, 35)
SHARED_ACCESS_MODES = {"ReadWriteMany", "ReadOnlyMany"}


@doctor_check("template")
def check_template(view: ClusterView, job: Job, profile: Profile) -> DoctorCheck:
    """The job's WorkflowTemplate, if registered, is that of this version and profile."""
    name = job_template_name(job, profile)
    registered = view.get(WORKFLOW_TEMPLATES, name)
    if registered is None:
        return ok(f"WorkflowTemplate {name} is not registered yet; `imagekiln submit` does that.")
    if template_digest(registered) != template_digest(build_job_template(job, profile)):
        return wrong(
            f"WorkflowTemplate {name} differs from what this version of Imagekiln registers.",
            "Run `imagekiln apply JOB`.",
        )
    return ok(f"WorkflowTemplate {name} is registered and up to date.")


@doctor_check("runtime-class")
def check_runtime_class(view: ClusterView, name: str) -> DoctorCheck:
    """The RuntimeClass that pods name exists."""
    if view.get(RUNTIME_CLASSES, name) is None:
        return wrong(
            f"RuntimeClass {name} does not exist.",
            "Create it, as the NVIDIA GPU Operator does, or use another profile.",
        )
    return ok(f"RuntimeClass {name} exists.")


@doctor_check("priority-class")
def check_priority_class(view: ClusterView, name: str) -> DoctorCheck:
    """The PriorityClass that pods name exists: without it, Kubernetes rejects them."""
    if view.get(PRIORITY_CLASSES, name) is None:
        return wrong(
            f"PriorityClass {name} does not exist.",
            "Create it, name one that exists in `cluster.priority_class` or in the profile's "
            "`priority_class`, or apply cluster/base/priority.yaml, which `imagekiln manifests "
            "cluster` writes, for imagekiln-batch and imagekiln-urgent.",
        )
    return ok(f"PriorityClass {name} exists.")


@doctor_check("model-cache")
def check_model_claim(view: ClusterView, name: str) -> DoctorCheck:
    """The claim that holds model files is bound, and many nodes can mount it."""
    claim = view.get(VOLUME_CLAIMS, name)
    if claim is None:
        return wrong(
            f"PersistentVolumeClaim {name} does not exist in namespace {view.namespace}.",
            f"Create one: `imagekiln manifests cluster`, then `kubectl apply -n {view.namespace} "
            "-f cluster/gpus/models-claim.yaml`.",
        )
    phase = get_mapping(claim, "status").get("phase")
    if phase == "Pending":
        # Only the claim's events say whether its storage class waits for the first pod.
        return unknown(
            f"PersistentVolumeClaim {name} is not bound yet.",
            "It may wait for its first pod. See its events: "
            f"`kubectl describe pvc {name} -n {view.namespace}`.",
        )
    if phase != "Bound":
        return wrong(
            f"PersistentVolumeClaim {name} is {phase}.",
            f"Delete it, `kubectl delete pvc {name} -n {view.namespace}`, and create it again on "
            "a volume that exists.",
        )
    if SHARED_ACCESS_MODES.isdisjoint(get_list(claim, "spec", "accessModes")):
        return wrong(
            f"PersistentVolumeClaim {name} mounts on one node only.",
            "Create it with accessModes: [ReadWriteMany], in a storage class that has that.",
        )
    return ok(f"PersistentVolumeClaim {name} is bound.")


@doctor_check("model-image")
def check_image_volume(view: ClusterView) -> DoctorCheck:
    """Kubernetes can mount an OCI image, in which the profile keeps model files."""
    version = view.version()
    match = re.match(r"v?(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else IMAGE_VOLUMES_SINCE
    if number < IMAGE_VOLUMES_SINCE:
        return wrong(
            f"Kubernetes {version} cannot mount images as volumes.",
            "Update Kubernetes to 1.35, or keep models in cache.claim.",
        )
    if number < IMAGE_VOLUMES_BY_DEFAULT:
        return unknown(
            f"Kubernetes {version} mounts images only with its feature gate ImageVolume; without "
            "it, pods start without the models.",
            "Ask a cluster administrator, update to 1.35, or keep models in cache.claim.",
        )
    return ok(f"Kubernetes {version} mounts images as volumes.")


@doctor_check("semaphore")
def check_semaphore(view: ClusterView, key: str, namespace: str | None = None) -> DoctorCheck:
    """The semaphore has a limit: how many pods generate at once, over all batches."""
    if namespace not in (None, view.namespace):
        return unknown(
            f"ConfigMap {SEMAPHORE_CONFIG_MAP} is in namespace {namespace}, which doctor does not "
            "read.",
            f"Look: `kubectl get configmap {SEMAPHORE_CONFIG_MAP} -n {namespace} -o yaml`.",
        )
    config_map = view.get(CONFIG_MAPS, SEMAPHORE_CONFIG_MAP)
    limit = get_texts(config_map, "data").get(key, "").strip()
    if not limit.isdecimal() or int(limit) == 0:
        patch = f'{{"data": {{"{key}": "16"}}}}'
        return wrong(
            f"ConfigMap {SEMAPHORE_CONFIG_MAP} has no number in {key}.",
            "Set how many pods may run at once, such as 16: `kubectl patch configmap "
            f"{SEMAPHORE_CONFIG_MAP} -n {view.namespace} -p '{patch}'`.",
        )
    return ok(f"{limit} pods at once, over all batches.")


@doctor_check("queue")
def check_queue(view: ClusterView, name: str) -> DoctorCheck:
    """Kueue has the queue that GPU pods name, and admits pods from it."""
    queue = view.get(LOCAL_QUEUES, name)
    if queue is None:
        return wrong(
            f"LocalQueue {name} does not exist in namespace {view.namespace}: Kueue would never "
            "admit the GPU pods.",
            "Create it, as in cluster/gpus/kueue.yaml, which `imagekiln manifests cluster` writes. "
            "It needs Kueue 0.16 or newer.",
        )
    for condition in get_mappings(queue, "status", "conditions"):
        if condition.get("type") == "Active" and condition.get("status") != "True":
            return wrong(
                f"LocalQueue {name} is not active: {condition.get('message')}",
                f"See `kubectl describe localqueue {name} -n {view.namespace}`.",
            )
    return ok(f"LocalQueue {name} exists.")


def job_priority_classes(job: Job, profile: Profile) -> list[str]:
    """Return the PriorityClasses that the pods of a job name."""
    pods = (profile.generate, profile.steps)
    names = {pod.priority_class or job.cluster.priority_class for pod in pods}
    return sorted(name for name in names if name)
