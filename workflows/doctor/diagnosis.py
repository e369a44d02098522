"""Each prerequisite of a cluster for a job, looked at one by one."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from imagekiln.steps.job import Job
from imagekiln.workflows import gpu_profiles
from imagekiln.workflows.connection import Connection
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
from imagekiln.workflows.doctor.check import Check
from imagekiln.workflows.doctor.kubernetes_view import KubernetesView
from imagekiln.workflows.profile import Profile


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What doctor found."""

    namespace: str
    profile: str
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong; what could not be looked at may be."""
        return all(each.verdict != "wrong" for each in self.checks)


def diagnose(job: Job, kubernetes: Connection, server: Connection | None = None) -> Iterator[Check]:
    """Look at one prerequisite after the other. Raises TryAgain where the Kubernetes API does not answer.

    Nothing is changed on the cluster; an object is written to the job's output, and removed.
    """
    view, profile = KubernetesView(kubernetes, job.cluster.namespace), gpu_profiles.load(job.cluster.profile)
    yield check_argo.kubernetes(view)
    yield from _argo(view, server)
    yield check_access.namespace(view, profile)
    yield from _namespace(view, job, profile, server)
    yield from _nodes(view, job, profile)
    yield from _storage(job)


def diagnosis(job: Job, checks: Iterable[Check]) -> Diagnosis:
    """The checks together."""
    return Diagnosis(job.cluster.namespace, job.cluster.profile, tuple(checks))


def _argo(view: KubernetesView, server: Connection | None) -> Iterator[Check]:
    yield check_argo.definitions(view)
    yield check_argo.controller(view)
    if server:
        yield check_argo.answering(server)
    yield check_argo.version(view, server)


def _namespace(view: KubernetesView, job: Job, profile: Profile, server: Connection | None) -> Iterator[Check]:
    priorities = check_namespace.priority_classes(job, profile)
    yield check_access.rights(view, by_server=server is not None)
    yield check_access.accounts(view)
    yield check_access.pod_rights(view)
    yield check_access.credentials(view, job.output)
    yield check_namespace.template(view, profile)
    yield check_quota.quota(view, profile, job.cluster.parallelism, priorities)
    yield check_quota.limit_range(view, profile)
    yield from (check_namespace.priority_class(view, name) for name in priorities)
    yield from _named(view, profile)


def _named(view: KubernetesView, profile: Profile) -> Iterator[Check]:
    """What only some profiles name."""
    if profile.sharing.semaphore:
        yield check_namespace.semaphore(view, profile.sharing.semaphore)
    if profile.cache and profile.cache.claim:
        yield check_namespace.claim(view, profile.cache.claim)
    if profile.cache and profile.cache.image:
        yield check_namespace.image_volume(view)
    if profile.report_artifact:
        yield check_reports.artifacts(view)


def _nodes(view: KubernetesView, job: Job, profile: Profile) -> Iterator[Check]:
    if profile.gpu.claim:
        yield check_devices.claim(view, profile.gpu.claim)
        yield check_gpus.claim_nodes(view, profile)
    else:
        yield check_gpus.gpus(view, profile)
    if profile.gpu.device == "cuda":
        yield check_devices.driver(view, profile, job.cluster.gpu_image or profile.generate.image)
    yield check_gpus.cpus(view, profile)
    for name in sorted({pod.runtime_class for pod in (profile.generate, profile.steps) if pod.runtime_class}):
        yield check_namespace.runtime_class(view, name)
    yield from check_images.images(view, job, profile)
    yield check_devices.metrics(view)


def _storage(job: Job) -> Iterator[Check]:
    yield check_storage.places(job)
    yield check_storage.output(job)
    yield check_storage.prompts(job)
    if job.batch.tuning is not None:
        yield check_storage.tuning(job)
