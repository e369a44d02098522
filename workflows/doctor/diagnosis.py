"""Each prerequisite of a cluster for a job, looked at one by one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from imagekiln.steps.job import Job
from imagekiln.workflows import gpu_profiles
from imagekiln.workflows.connection import ApiConnection
from imagekiln.workflows.doctor import (
    check_access,
    check_argo,
    check_devices,
    check_gpus,
    check_images,
    check_namespace,
    check_quota,
    check_reports,
    check_storage,
)
from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.kubernetes_view import ClusterView
from imagekiln.workflows.profile import Profile


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What doctor found."""

    namespace: str
    profile: str
    checks: tuple[DoctorCheck, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong; what could not be looked at may be."""
        return all(each.verdict != "wrong" for each in self.checks)


def diagnose(job: Job, kubernetes: ApiConnection, server: ApiConnection | None = None) -> Iterator[DoctorCheck]:
    """Look at one prerequisite after the other. Raises TryAgain where the Kubernetes API does not answer.

    Nothing is changed on the cluster; an object is written to the job's output, and removed.
    """
    view, profile = ClusterView(kubernetes, job.cluster.namespace), gpu_profiles.load_profile(job.cluster.profile)
    yield check_argo.check_kubernetes(view)
    yield from _check_argo(view, server)
    yield check_access.check_namespace_exists(view, profile)
    yield from _check_namespace(view, job, profile, server)
    yield from _check_nodes(view, job, profile)
    yield from _check_storage(job)


def collect_diagnosis(job: Job, checks: Iterable[DoctorCheck]) -> Diagnosis:
    """The checks together."""
    return Diagnosis(job.cluster.namespace, job.cluster.profile, tuple(checks))


def _check_argo(view: ClusterView, server: ApiConnection | None) -> Iterator[DoctorCheck]:
    yield check_argo.check_crds(view)
    yield check_argo.check_controller(view)
    if server:
        yield check_argo.check_server(server)
    yield check_argo.check_argo_version(view, server)


def _check_namespace(
    view: ClusterView, job: Job, profile: Profile, server: ApiConnection | None
) -> Iterator[DoctorCheck]:
    priorities = check_namespace.job_priority_classes(job, profile)
    yield check_access.check_user_rights(view, by_server=server is not None)
    yield check_access.check_service_accounts(view)
    yield check_access.check_pod_rights(view)
    yield check_access.check_store_credentials(view, job.output)
    yield check_namespace.check_template(view, profile)
    yield check_quota.check_resource_quota(view, profile, job.cluster.parallelism, priorities)
    yield check_quota.check_limit_range(view, profile)
    yield from (check_namespace.check_priority_class(view, name) for name in priorities)
    yield from _check_profile_objects(view, profile)


def _check_profile_objects(view: ClusterView, profile: Profile) -> Iterator[DoctorCheck]:
    """What only some profiles name."""
    if profile.sharing.semaphore:
        yield check_namespace.check_semaphore(view, profile.sharing.semaphore)
    if profile.cache and profile.cache.claim:
        yield check_namespace.check_model_claim(view, profile.cache.claim)
    if profile.cache and profile.cache.image:
        yield check_namespace.check_image_volume(view)
    if profile.report_artifact:
        yield check_reports.check_report_artifact(view)


def _check_nodes(view: ClusterView, job: Job, profile: Profile) -> Iterator[DoctorCheck]:
    if profile.gpu.claim:
        yield check_devices.check_gpu_claim(view, profile.gpu.claim)
        yield check_gpus.check_claim_nodes(view, profile)
    else:
        yield check_gpus.check_gpu_nodes(view, profile)
    if profile.gpu.device == "cuda":
        yield check_devices.check_driver(view, profile, job.cluster.gpu_image or profile.generate.image)
    yield check_gpus.check_cpu_nodes(view, profile)
    for name in sorted({pod.runtime_class for pod in (profile.generate, profile.steps) if pod.runtime_class}):
        yield check_namespace.check_runtime_class(view, name)
    yield from check_images.check_container_images(view, job, profile)
    yield check_devices.check_gpu_metrics(view)


def _check_storage(job: Job) -> Iterator[DoctorCheck]:
    yield check_storage.check_paths(job)
    yield check_storage.check_output(job)
    yield check_storage.check_prompts(job)
    if job.batch.tuning is not None:
        yield check_storage.check_tuning(job)
