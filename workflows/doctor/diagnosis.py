"""Each prerequisite of a cluster for a job, looked at one by one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.check_access import (
    check_namespace_exists,
    check_pod_rights,
    check_service_accounts,
    check_store_credentials,
    check_user_rights,
)
from imagekiln.workflows.doctor.check_argo import (
    check_argo_version,
    check_controller,
    check_crds,
    check_kubernetes,
    check_server,
)
from imagekiln.workflows.doctor.check_devices import (
    check_driver,
    check_gpu_claim,
    check_gpu_metrics,
)
from imagekiln.workflows.doctor.check_gpus import (
    check_claim_nodes,
    check_cpu_nodes,
    check_gpu_nodes,
)
from imagekiln.workflows.doctor.check_images import check_container_images
from imagekiln.workflows.doctor.check_namespace import (
    check_image_volume,
    check_model_claim,
    check_priority_class,
    check_runtime_class,
    check_semaphore,
    check_template,
    job_priority_classes,
)
from imagekiln.workflows.doctor.check_quota import check_limit_range, check_resource_quota
from imagekiln.workflows.doctor.check_reports import check_report_artifact
from imagekiln.workflows.doctor.check_storage import (
    check_output,
    check_paths,
    check_prompts,
    check_tuning,
)
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile


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


def diagnose(
    job: Job, kubernetes: ApiConnection, server: ApiConnection | None = None
) -> Iterator[DoctorCheck]:
    """Look at one prerequisite after the other. Raises TryAgain where the Kubernetes API does not answer.

    Nothing is changed on the cluster; an object is written to the job's output, and removed.
    """
    view, profile = (
        ClusterView(kubernetes, job.cluster.namespace),
        load_profile(job.cluster.profile),
    )
    yield check_kubernetes(view)
    yield from _check_argo(view, server)
    yield check_namespace_exists(view, profile)
    yield from _check_namespace(view, job, profile, server)
    yield from _check_nodes(view, job, profile)
    yield from _check_storage(job)


def collect_diagnosis(job: Job, checks: Iterable[DoctorCheck]) -> Diagnosis:
    """The checks together."""
    return Diagnosis(job.cluster.namespace, job.cluster.profile, tuple(checks))


def _check_argo(view: ClusterView, server: ApiConnection | None) -> Iterator[DoctorCheck]:
    yield check_crds(view)
    yield check_controller(view)
    if server:
        yield check_server(server)
    yield check_argo_version(view, server)


def _check_namespace(
    view: ClusterView, job: Job, profile: Profile, server: ApiConnection | None
) -> Iterator[DoctorCheck]:
    priorities = job_priority_classes(job, profile)
    yield check_user_rights(view, by_server=server is not None)
    yield check_service_accounts(view)
    yield check_pod_rights(view)
    yield check_store_credentials(view, job.output)
    yield check_template(view, profile)
    yield check_resource_quota(view, profile, job.cluster.parallelism, priorities)
    yield check_limit_range(view, profile)
    yield from (check_priority_class(view, name) for name in priorities)
    yield from _check_profile_objects(view, profile)


def _check_profile_objects(view: ClusterView, profile: Profile) -> Iterator[DoctorCheck]:
    """What only some profiles name."""
    if profile.sharing.semaphore:
        yield check_semaphore(view, profile.sharing.semaphore)
    if profile.cache and profile.cache.claim:
        yield check_model_claim(view, profile.cache.claim)
    if profile.cache and profile.cache.image:
        yield check_image_volume(view)
    if profile.report_artifact:
        yield check_report_artifact(view)


def _check_nodes(view: ClusterView, job: Job, profile: Profile) -> Iterator[DoctorCheck]:
    if profile.gpu.claim:
        yield check_gpu_claim(view, profile.gpu.claim)
        yield check_claim_nodes(view, profile)
    else:
        yield check_gpu_nodes(view, profile)
    if profile.gpu.device == "cuda":
        yield check_driver(view, profile, job.cluster.gpu_image or profile.generate.image)
    yield check_cpu_nodes(view, profile)
    for name in sorted(
        {pod.runtime_class for pod in (profile.generate, profile.steps) if pod.runtime_class}
    ):
        yield check_runtime_class(view, name)
    yield from check_container_images(view, job, profile)
    yield check_gpu_metrics(view)


def _check_storage(job: Job) -> Iterator[DoctorCheck]:
    yield check_paths(job)
    yield check_output(job)
    yield check_prompts(job)
    if job.batch.tuning is not None:
        yield check_tuning(job)
