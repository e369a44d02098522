"""List of doctor's checks, in the order in which they run.

New checks are listed in CLUSTER_CHECKS. `imagekiln.workflows.doctor` explains how to write one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.doctor import (
    check_access,
    check_argo,
    check_nodes,
    check_profile,
    check_storage,
)
from imagekiln.workflows.doctor.check import DoctorCheck, Needs, split_remedy
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.profiles.loader import load_profile

CLUSTER_CHECKS = (
    check_argo.check_kubernetes,
    check_argo.check_crds,
    check_argo.check_controller,
    check_argo.check_argo_version,
    check_access.check_namespace_exists,
    check_access.check_user_rights,
    check_access.check_service_accounts,
    check_access.check_pod_rights,
    check_access.check_store_credentials,
    check_access.check_hub_token,
    check_profile.check_template,
    check_profile.check_resource_quota,
    check_profile.check_limit_ranges,
    check_profile.check_priority_classes,
    check_profile.check_semaphore,
    check_profile.check_queue,
    check_profile.check_model_claim,
    check_profile.check_image_volume,
    check_profile.check_artifact_repository,
    check_nodes.check_gpu_claim,
    check_nodes.check_gpu_nodes,
    check_nodes.check_gpu_memory,
    check_nodes.check_driver,
    check_nodes.check_cpu_nodes,
    check_profile.check_runtime_classes,
)
LOCAL_CHECKS = (
    check_storage.check_paths,
    check_storage.check_output,
    check_storage.check_export,
    check_storage.check_prompts,
    check_storage.check_tuning,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Results of all checks of one job."""

    namespace: str
    profile: str
    checks: tuple[DoctorCheck, ...]

    @property
    def healthy(self) -> bool:
        """False if any check is wrong. Unknown results count as healthy."""
        verdicts = {check.verdict for check in self.checks}
        return "wrong" not in verdicts


def diagnose(
    job: Job, kubernetes: ApiConnection | KilnError, server: ApiConnection | None = None
) -> Iterator[DoctorCheck]:
    """Run every check that the job needs, and yield the results.

    The cluster is not changed. An object is written to the job's output and to each of its exports,
    and removed. If the Kubernetes API refuses this user, does not respond, or is given as an error,
    the checks that do not need it still run. The last result then gives the reason, or TryAgain is
    raised if another attempt may find a cluster.
    """
    profile = load_profile(job.cluster.profile)
    weights = check_storage.read_weights(job)
    reason: KilnError | None = None
    try:
        if isinstance(kubernetes, KilnError):
            raise kubernetes
        view = ClusterView(kubernetes, job.cluster.namespace)
        needs = Needs(job, profile, view, server, weights)
        yield from filter(None, (check(needs) for check in CLUSTER_CHECKS))
    except KilnError as error:
        reason = error
    yield check_storage.check_model(job, weights)
    yield from filter(None, (check(job) for check in LOCAL_CHECKS))
    if server is not None:
        yield check_argo.check_server(server)
    if isinstance(reason, TryAgain):
        raise reason
    if reason is not None:
        yield DoctorCheck("kubernetes", "wrong", *split_remedy(reason))


def collect_diagnosis(job: Job, checks: Iterable[DoctorCheck]) -> Diagnosis:
    """Collect the checks of a job as one result."""
    return Diagnosis(job.cluster.namespace, job.cluster.profile, tuple(checks))
