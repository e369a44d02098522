"""The list of doctor's checks, in the order in which they run.

A new check is yielded here; `imagekiln.workflows.doctor` says how to write one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.steps.models.hub import is_hub_id
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor import (
    check_access,
    check_argo,
    check_artifacts,
    check_nodes,
    check_profile,
    check_quota,
    check_storage,
)
from imagekiln.workflows.doctor.check import DoctorCheck
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.profiles.profile import Profile

Checks = Iterator[DoctorCheck]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All checks of one job, as doctor prints them."""

    namespace: str
    profile: str
    checks: tuple[DoctorCheck, ...]

    @property
    def healthy(self) -> bool:
        """False if any check is wrong; unknown ones count as healthy."""
        verdicts = {check.verdict for check in self.checks}
        return "wrong" not in verdicts


def diagnose(job: Job, kubernetes: ApiConnection, server: ApiConnection | None = None) -> Checks:
    """Make every check that the job needs, one by one.

    Nothing is changed on the cluster; an object is written to the job's output and to each of its
    exports, and removed. If the Kubernetes API refuses this user or does not answer, the checks
    that need none are still made, before TryAgain is raised if it does not answer.
    """
    view = ClusterView(kubernetes, job.cluster.namespace)
    profile = load_profile(job.cluster.profile)
    try:
        yield check_argo.check_kubernetes(view)
        yield from _argo_checks(view, server)
        yield from _namespace_checks(view, job, profile, server)
        yield from _profile_checks(view, profile)
        yield from _artifact_checks(view, profile)
        weights = check_storage.read_weights(job)
        yield from _node_checks(view, job, profile, weights)
    except KilnError as error:
        yield from diagnose_without_cluster(job, error)
    else:
        yield from _local_checks(job, weights)


def diagnose_without_cluster(
    job: Job, reason: KilnError, server: ApiConnection | None = None
) -> Checks:
    """Make the checks that need no cluster, for want of one, and that of an Argo server.

    The last of them says why, or TryAgain is raised if another attempt may find one.
    """
    load_profile(job.cluster.profile)
    yield from _local_checks(job, check_storage.read_weights(job))
    if server is not None:
        yield check_argo.check_server(server)
    if isinstance(reason, TryAgain):
        raise reason
    yield DoctorCheck("kubernetes", "wrong", *check_storage.split_remedy(reason))


def collect_diagnosis(job: Job, checks: Iterable[DoctorCheck]) -> Diagnosis:
    """The checks as one result."""
    return Diagnosis(
        namespace=job.cluster.namespace,
        profile=job.cluster.profile,
        checks=tuple(checks),
    )


def _argo_checks(view: ClusterView, server: ApiConnection | None) -> Checks:
    yield check_argo.check_crds(view)
    yield check_argo.check_controller(view)
    if server is not None:
        yield check_argo.check_server(server)
    yield check_argo.check_argo_version(view, server)


def _namespace_checks(
    view: ClusterView, job: Job, profile: Profile, server: ApiConnection | None
) -> Checks:
    from huggingface_hub import get_token

    yield check_access.check_namespace_exists(view, profile)
    yield check_access.check_user_rights(view, by_server=server is not None)
    yield check_access.check_service_accounts(view)
    yield check_access.check_pod_rights(view)
    yield check_access.check_store_credentials(view, job.output)
    if is_hub_id(job.model.id) and get_token():
        yield check_access.check_hub_token(view)
    yield check_profile.check_template(view, job, profile)
    yield check_quota.check_resource_quota(view, profile, job.cluster.parallelism)
    for name in check_profile.job_priority_classes(job, profile):
        yield check_profile.check_priority_class(view, name)


def _profile_checks(view: ClusterView, profile: Profile) -> Checks:
    """Check objects that only some profiles name."""
    if profile.sharing.semaphore:
        yield check_profile.check_semaphore(
            view, profile.sharing.semaphore, profile.sharing.namespace
        )
    if profile.queue:
        yield check_profile.check_queue(view, profile.queue.name)
    if profile.cache and profile.cache.claim:
        yield check_profile.check_model_claim(view, profile.cache.claim)
    if profile.cache and profile.cache.image:
        yield check_profile.check_image_volume(view)


def _artifact_checks(view: ClusterView, profile: Profile) -> Checks:
    """Check what Argo needs to show reports, and to keep logs."""
    if profile.report_artifact or profile.archive_logs:
        yield check_artifacts.check_artifact_repository(view)


def _node_checks(
    view: ClusterView, job: Job, profile: Profile, weights: int | KilnError | None
) -> Checks:
    if profile.gpu.claim:
        yield check_nodes.check_gpu_claim(view, profile.gpu.claim)
    yield check_nodes.check_gpu_nodes(view, profile)
    yield check_nodes.check_gpu_memory(view, job, profile, weights)
    if profile.gpu.device == "cuda":
        image = job.cluster.gpu_image or profile.generate.image
        yield check_nodes.check_driver(view, profile, image)
    yield check_nodes.check_cpu_nodes(view, profile)
    runtime_classes = {profile.generate.runtime_class, profile.steps.runtime_class}
    for name in sorted(name for name in runtime_classes if name):
        yield check_profile.check_runtime_class(view, name)


def _local_checks(job: Job, weights: int | KilnError | None) -> Checks:
    """Check what needs no cluster."""
    yield check_storage.check_model(job, weights)
    yield check_storage.check_paths(job)
    yield check_storage.check_output(job)
    for destination in job.export:
        yield check_storage.check_export(destination.to)
    yield check_storage.check_prompts(job)
    if job.batch.tuning is not None:
        yield check_storage.check_tuning(job)
