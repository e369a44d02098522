"""Checks of objects that a profile and a job name: template, quota, limits, classes, claims."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import cast

from imagekiln.steps.job.settings_file import YAML_ERRORS, load_yaml
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.workflows.client.api import ARGO_API_PATH
from imagekiln.workflows.doctor.check import (
    DoctorCheck,
    Needs,
    doctor_check,
    ok,
    unknown,
    wrong,
)
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.objects import (
    Json,
    get_list,
    get_mapping,
    get_mappings,
    get_texts,
    object_name,
)
from imagekiln.workflows.profiles.profile import Gpu, PodSettings, Profile
from imagekiln.workflows.templates.pod import POD_OVERHEAD_GIB
from imagekiln.workflows.templates.security import ARGO_RESOURCES
from imagekiln.workflows.templates.workflow_template import (
    build_job_template,
    job_template_name,
    template_digest,
)

WORKFLOW_TEMPLATES = ResourceKind(ARGO_API_PATH, "workflowtemplates", namespaced=True)
CONFIG_MAPS = ResourceKind("api/v1", "configmaps", namespaced=True)
QUOTAS = ResourceKind("api/v1", "resourcequotas", namespaced=True)
LIMIT_RANGES = ResourceKind("api/v1", "limitranges", namespaced=True)
VOLUME_CLAIMS = ResourceKind("api/v1", "persistentvolumeclaims", namespaced=True)
LOCAL_QUEUES = ResourceKind("apis/kueue.x-k8s.io/v1beta2", "localqueues", namespaced=True)
RUNTIME_CLASSES = ResourceKind("apis/node.k8s.io/v1", "runtimeclasses")
PRIORITY_CLASSES = ResourceKind("apis/scheduling.k8s.io/v1", "priorityclasses")
SEMAPHORE_CONFIG_MAP = "imagekiln-gpus"
IMAGE_VOLUMES_SINCE = (1, 33)  # with the feature gate ImageVolume
IMAGE_VOLUMES_BY_DEFAULT = (1, 35)
SHARED_ACCESS_MODES = {"ReadWriteMany", "ReadOnlyMany"}
# The scopes of a quota that include pods with a deadline and requests.
POD_SCOPES = {"Terminating", "NotBestEffort"}
# In a quota, these plain names stand for requests.
COMPUTE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
MIB = 2**20
GIB = 2**30
REPOSITORIES_CONFIG_MAP = "artifact-repositories"
DEFAULT_REPOSITORY_ANNOTATION = "workflows.argoproj.io/default-artifact-repository"


@doctor_check("template")
def check_template(needs: Needs) -> DoctorCheck:
    """Check that the job's WorkflowTemplate, if registered, has this version and profile."""
    name = job_template_name(needs.job, needs.profile)
    registered = needs.view.get(WORKFLOW_TEMPLATES, name)
    if registered is None:
        return ok(f"WorkflowTemplate {name} is not registered yet; `imagekiln submit` does that.")
    current = build_job_template(needs.job, needs.profile)
    if template_digest(registered) != template_digest(current):
        return wrong(
            f"WorkflowTemplate {name} differs from what this version of Imagekiln registers.",
            "Run `imagekiln apply JOB`.",
        )
    return ok(f"WorkflowTemplate {name} is registered and up to date.")


@doctor_check("quota")
def check_resource_quota(needs: Needs) -> DoctorCheck:
    """Check that the quotas have room for each pod, though not always for `parallelism` at once."""
    view, parallelism = needs.view, needs.job.cluster.parallelism
    quotas = [quota for quota in view.list_objects(QUOTAS) if _counts_pods(quota)]
    rooms = [room for quota in quotas for room in _rooms(quota, needs.profile)]
    for step, resource, pods, name in rooms:
        if pods == 0:
            return wrong(
                f"Quota {name} never admits a pod of {step}: it asks for more {resource} than the "
                "whole quota.",
                f"Raise it: `kubectl edit resourcequota {name} -n {view.namespace}`. "
                "Or ask for less in a profile of your own.",
            )
    limits = [(pods, resource) for step, resource, pods, _ in rooms if step == "generate"]
    pods, tightest = min(limits, default=(parallelism, ""))
    if pods >= parallelism:
        return ok(f"Room for {pluralize(parallelism, 'GPU pod')} at once.")
    return ok(
        f"Room for {pluralize(pods, 'GPU pod')} at once, limited by {tightest}; "
        f"the job's parallelism is {parallelism}."
    )


def _rooms(quota: Json, profile: Profile) -> Iterator[tuple[str, str, int, str]]:
    """Yield the step, the resource, the number of its pods that fit, and the quota's name."""
    hard = get_quantities(quota, "spec", "hard")
    for step, usage in usage_by_step(profile).items():
        for resource in hard.keys() & usage.keys():
            yield step, resource, int(hard[resource] // usage[resource]), object_name(quota)


def _counts_pods(quota: Json) -> bool:
    """Return whether a quota surely counts our pods. Quotas of a priority class may not."""
    is_of_pods = POD_SCOPES.issuperset(map(str, get_list(quota, "spec", "scopes")))
    return is_of_pods and not get_mapping(quota, "spec", "scopeSelector")


def usage_by_step(profile: Profile) -> dict[str, dict[str, Decimal]]:
    """Return the quota usage of a pod of generate, and of a pod of the CPU steps, by resource."""
    return {
        "plan": _pod_usage(profile.steps, None),
        "generate": _pod_usage(profile.generate, profile.gpu),
    }


def _pod_usage(pod: PodSettings, gpu: Gpu | None) -> dict[str, Decimal]:
    """Return the resources of a pod with both containers, without a GPU by claim."""
    main = _main_requests(pod, gpu)
    requests = _add(main, get_quantities(ARGO_RESOURCES, "requests"))
    del main["cpu"]  # which has no limit
    limits = _add(main, get_quantities(ARGO_RESOURCES, "limits"))
    usage = {"pods": Decimal(1), "count/pods": Decimal(1)}
    usage |= {name: requests[name] for name in COMPUTE_RESOURCES if name in requests}
    usage |= {f"requests.{name}": amount for name, amount in requests.items()}
    return usage | {f"limits.{name}": amount for name, amount in limits.items()}


def _main_requests(pod: PodSettings, gpu: Gpu | None) -> dict[str, Decimal]:
    """Return what our container requests, and except for the CPU also has as its limit."""
    requests = {
        "cpu": Decimal(round(pod.cpu * 1000)) / 1000,
        "memory": Decimal(round(pod.memory * 1024) * MIB),
    }
    if pod.disk is not None:
        requests["ephemeral-storage"] = Decimal(round((pod.disk + POD_OVERHEAD_GIB) * 1024) * MIB)
    if gpu is not None and not gpu.claim:
        requests[gpu.resource] = Decimal(gpu.count)
    return requests


def _add(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: amount + other.get(name, Decimal(0)) for name, amount in one.items()}


def get_quantities(value: object, *keys: str) -> dict[str, Decimal]:
    """Return the quantities at a path of keys, such as 250m or 4Gi, as numbers."""
    from kubernetes.utils.quantity import parse_quantity

    mapping = get_mapping(value, *keys)
    return {key: cast("Decimal", parse_quantity(item)) for key, item in mapping.items()}


@doctor_check("limit-range")
def check_limit_ranges(needs: Needs) -> DoctorCheck:
    """Check that every LimitRange allows a container what GPU pods request.

    The API server refuses a pod that requests more. The memory that a pod grows to after OOMKilled
    is not compared.
    """
    requests = _main_requests(needs.profile.generate, needs.profile.gpu)
    exceeded = [
        (object_name(limit_range), resource, text)
        for limit_range in needs.view.list_objects(LIMIT_RANGES)
        for resource, text, maximum in _container_maxima(limit_range)
        if resource in requests and requests[resource] > maximum
    ]
    if not exceeded:
        return ok("No LimitRange refuses the GPU pods.")
    says = [
        f"LimitRange {name} allows a container at most {text} of {resource}, and a GPU pod "
        f"requests {_format_amount(resource, requests[resource])}: Kubernetes refuses it."
        for name, resource, text in exceeded
    ]
    names = sorted({name for name, _, _ in exceeded})
    return wrong(
        " ".join(says),
        f"Raise max: `kubectl edit limitrange {' '.join(names)} -n {needs.view.namespace}`. "
        "Or ask for less in a profile of your own.",
    )


def _container_maxima(limit_range: Json) -> Iterator[tuple[str, str, Decimal]]:
    """Yield each resource and the most that a container may have, as a quantity and as a number."""
    for item in get_mappings(limit_range, "spec", "limits"):
        if item.get("type") == "Container":
            texts = get_texts(item, "max")
            for resource, maximum in get_quantities(item, "max").items():
                yield resource, texts[resource], maximum


def _format_amount(resource: str, amount: Decimal) -> str:
    """Format cores or devices as a number, and bytes in the unit of profiles."""
    if resource in ("memory", "ephemeral-storage"):
        return f"{float(amount / GIB):g}Gi"
    return f"{float(amount):g}"


@doctor_check("runtime-class")
def check_runtime_classes(needs: Needs) -> DoctorCheck | None:
    """Check that the RuntimeClasses named by pods exist."""
    names = {pod.runtime_class for pod in (needs.profile.generate, needs.profile.steps)}
    return _find_classes(
        needs.view,
        RUNTIME_CLASSES,
        "RuntimeClass",
        names,
        "Create it, as the NVIDIA GPU Operator does, or use another profile.",
    )


@doctor_check("priority-class")
def check_priority_classes(needs: Needs) -> DoctorCheck | None:
    """Check that the PriorityClasses of pods exist. Without them, Kubernetes rejects the pods."""
    own = needs.job.cluster.priority_class
    names = {pod.priority_class or own for pod in (needs.profile.generate, needs.profile.steps)}
    return _find_classes(
        needs.view,
        PRIORITY_CLASSES,
        "PriorityClass",
        names,
        "Create it, name one that exists in `cluster.priority_class` or in the profile's "
        "`priority_class`, or apply cluster/base/priority.yaml, which `imagekiln manifests "
        "cluster` writes, for imagekiln-batch and imagekiln-urgent.",
    )


def _find_classes(
    view: ClusterView, kind: ResourceKind, noun: str, names: set[str | None], remedy: str
) -> DoctorCheck | None:
    named = sorted(filter(None, names))
    missing = [name for name in named if view.get(kind, name) is None]
    if missing:
        return wrong(f"{noun} {' and '.join(missing)} does not exist.", remedy)
    return ok(f"{noun} {' and '.join(named)} exists.") if named else None


@doctor_check("model-cache")
def check_model_claim(needs: Needs) -> DoctorCheck | None:
    """Check that the claim for model files is bound, and that many nodes can mount it."""
    view, cache = needs.view, needs.profile.cache
    if cache is None or cache.claim is None:
        return None
    name = f"PersistentVolumeClaim {cache.claim}"
    claim = view.get(VOLUME_CLAIMS, cache.claim)
    if claim is None:
        return wrong(
            f"{name} does not exist in namespace {view.namespace}.",
            f"Create one: `imagekiln manifests cluster`, then `kubectl apply -n {view.namespace} "
            "-f cluster/gpus/models-claim.yaml`.",
        )
    if SHARED_ACCESS_MODES.isdisjoint(map(str, get_list(claim, "spec", "accessModes"))):
        return wrong(
            f"{name} mounts on one node only.",
            "Create it with accessModes: [ReadWriteMany], in a storage class that has that.",
        )
    phase = get_mapping(claim, "status").get("phase")
    if phase == "Bound":
        return ok(f"{name} is bound.")
    # Only the claim's events tell if its storage class waits for the first pod.
    return unknown(
        f"{name} is {phase}.",
        "Pending, it may wait for its first pod; Lost, create it again. See its events: "
        f"`kubectl describe pvc {cache.claim} -n {view.namespace}`.",
    )


@doctor_check("model-image")
def check_image_volume(needs: Needs) -> DoctorCheck | None:
    """Check that Kubernetes can mount an OCI image, if the profile keeps model files in one."""
    if needs.profile.cache is None or needs.profile.cache.image is None:
        return None
    version = needs.view.version()
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
def check_semaphore(needs: Needs) -> DoctorCheck | None:
    """Check that the semaphore has a limit: the number of generating pods over all batches.

    A semaphore of another namespace is not read.
    """
    key, namespace = needs.profile.sharing.semaphore, needs.view.namespace
    if key is None or needs.profile.sharing.namespace not in (None, namespace):
        return None
    place = f"configmap {SEMAPHORE_CONFIG_MAP} -n {namespace}"
    config_map = needs.view.get(CONFIG_MAPS, SEMAPHORE_CONFIG_MAP)
    limit = get_texts(config_map, "data").get(key, "").strip()
    if not limit.isdecimal() or int(limit) == 0:
        patch = f'{{"data": {{"{key}": "16"}}}}'
        return wrong(
            f"ConfigMap {SEMAPHORE_CONFIG_MAP} has no number in {key}.",
            f"Set how many pods may run at once, such as 16: `kubectl patch {place} -p '{patch}'`.",
        )
    return ok(f"{limit} pods at once, over all batches.")


@doctor_check("queue")
def check_queue(needs: Needs) -> DoctorCheck | None:
    """Check that Kueue has the queue of the GPU pods, and admits pods from it."""
    if needs.profile.queue is None:
        return None
    name, namespace = needs.profile.queue.name, needs.view.namespace
    queue = needs.view.get(LOCAL_QUEUES, name)
    if queue is None:
        return wrong(
            f"LocalQueue {name} does not exist in namespace {namespace}: Kueue would never "
            "admit the GPU pods.",
            "Create it, as in cluster/gpus/kueue.yaml, which `imagekiln manifests cluster` writes. "
            "It needs Kueue 0.16 or newer.",
        )
    for condition in get_mappings(queue, "status", "conditions"):
        if condition.get("type") == "Active" and condition.get("status") != "True":
            return wrong(
                f"LocalQueue {name} is not active: {condition.get('message')}",
                f"See `kubectl describe localqueue {name} -n {namespace}`.",
            )
    return ok(f"LocalQueue {name} exists.")


@doctor_check("artifact-repository")
def check_artifact_repository(needs: Needs) -> DoctorCheck | None:
    """Check that Argo has an S3 repository for reports and archived logs."""
    if not needs.profile.report_artifact and not needs.profile.archive_logs:
        return None
    config_map = needs.view.get(CONFIG_MAPS, REPOSITORIES_CONFIG_MAP)
    annotations = get_texts(config_map, "metadata", "annotations")
    key = annotations.get(DEFAULT_REPOSITORY_ANNOTATION, "")
    repository: object = None
    with suppress(*YAML_ERRORS):
        repository = load_yaml(get_texts(config_map, "data").get(key, ""))
    bucket = get_mapping(repository, "s3").get("bucket")
    if bucket:
        return ok(f"Argo stores reports in bucket {bucket}.")
    return wrong(
        f"ConfigMap {REPOSITORIES_CONFIG_MAP} in namespace {needs.view.namespace} has no S3 bucket "
        f"under the key that its annotation {DEFAULT_REPOSITORY_ANNOTATION} names.",
        "`imagekiln manifests cluster` writes cluster/base/artifacts.yaml. Put your bucket into a "
        "patch of it in your own overlay (docs/cluster.md) and run `kubectl apply -k` on that, or "
        "set report_artifact: false in a profile of your own.",
    )
