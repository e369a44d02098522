"""Argo's artifact store, tried with this machine's credentials, and by what its pods met."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from imagekiln.steps.errors import BadInput, KilnError
from imagekiln.steps.job.job import Job
from imagekiln.steps.storage import open_store
from imagekiln.workflows.client.client import OWN_LABEL
from imagekiln.workflows.client.nodes import pod_attempts
from imagekiln.workflows.client.steps import StepFailure
from imagekiln.workflows.doctor.check import Finding, Unreadable, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_argo import PODS, WORKFLOWS
from imagekiln.workflows.doctor.check_artifacts import STORAGE_SECRET, read_s3_repository
from imagekiln.workflows.doctor.check_object_store import (
    PLAINTEXT_ADVICE,
    WHOSE_CREDENTIALS,
    probe_store,
    storage_finding,
)
from imagekiln.workflows.doctor.check_profile import CONFIG_MAPS
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.objects import (
    Json,
    get_mapping,
    get_mappings,
    get_texts,
    object_name,
)
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.pod import DEFAULTS_CONFIG_MAP

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
AWS_DOMAIN = ".amazonaws.com"
DEFAULT_REGION = "us-east-1"
PUBLISHING_PODS = "labelSelector=imagekiln.dev/step=publish-report"
OWN_WORKFLOWS = f"labelSelector={OWN_LABEL}"
RECENT_AGE = timedelta(days=1)
PODS_ADVICE = (
    "Correct endpoint and insecure in ConfigMap artifact-repositories, and let NetworkPolicy "
    "imagekiln pass its port."
)
INSECURE_ADVICE = (
    "The store does not use TLS: write `insecure: true` below its endpoint in ConfigMap "
    "artifact-repositories (artifacts.yaml, or your overlay's patch of it), and apply that."
)


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A bucket, and the URL of its store; None for AWS."""

    bucket: str
    endpoint: str | None

    @property
    def store_name(self) -> str:
        """The store, for messages."""
        return self.endpoint or "AWS"


@doctor_check("artifact-store")
def check_artifact_store(view: ClusterView, job: Job, profile: Profile) -> Finding:
    """Argo's store takes an object, and pods have not failed to reach it."""
    repository = read_s3_repository(view)
    place = _repository_place(repository)
    finding = _try_store(place, repository)
    difference = _difference(place, _output_place(view, job, profile))
    says = f"{finding.says}{difference}"

    failure = _latest_failure(view)
    if failure is not None and not (finding.verdict == "ok" and _has_succeeded(view, failure)):
        remedy = PODS_ADVICE if finding.verdict == "ok" else finding.remedy or PODS_ADVICE
        combined = f"{says} {failure.says}"
        return wrong(combined, remedy) if finding.verdict == "wrong" else unknown(combined, remedy)
    return Finding(finding.verdict, says, finding.remedy)


def _try_store(place: BucketPlace, repository: Json) -> Finding:
    """Write an object with this machine's key, and remove it."""
    uri = f"s3://{place.bucket}"
    where = f"Bucket {place.bucket} at {place.store_name}"
    try:
        leftover = probe_store(open_store(uri, _probe_endpoint(place, repository)), careful=False)
    except KilnError as error:
        finding = storage_finding(error)
        if finding.remedy == PLAINTEXT_ADVICE:
            return wrong(f"{where}, for reports: {finding.says}", INSECURE_ADVICE)
        is_pods_key = get_mapping(repository, "accessKeySecret").get("name") == STORAGE_SECRET
        is_refused = finding.verdict == "wrong" and "no such bucket" not in finding.says
        if finding.verdict == "unknown" or (is_refused and not is_pods_key):
            remedy = f"{finding.remedy} {_consequence()}"
            return unknown(f"{where}, for reports: {finding.says}", remedy)
        return wrong(f"{where}, for reports: {finding.says}", str(finding.remedy))
    return ok(f"{where} takes new objects, for reports, {WHOSE_CREDENTIALS}.{leftover}")


def _consequence() -> str:
    return (
        "Without it, workflows succeed and Argo's page lacks their reports. With archive_logs in "
        "the profile they fail."
    )


def _repository_place(repository: Json) -> BucketPlace:
    endpoint = str(repository.get("endpoint", ""))
    bucket = str(repository.get("bucket", ""))
    if not endpoint or endpoint.partition(":")[0].endswith(AWS_DOMAIN):
        return BucketPlace(bucket, None)
    scheme = "http" if repository.get("insecure") else "https"
    return BucketPlace(bucket, f"{scheme}://{endpoint}")


def _output_place(view: ClusterView, job: Job, profile: Profile) -> BucketPlace | None:
    """Where pods find the job's output; None where that is no S3 store."""
    scheme, _, path = job.output.partition("://")
    if scheme not in ("s3", "s3a"):
        return None
    defaults = get_texts(view.get(CONFIG_MAPS, DEFAULTS_CONFIG_MAP), "data")
    endpoint = profile.steps.env.get(ENDPOINT_VARIABLE) or defaults.get(ENDPOINT_VARIABLE)
    return BucketPlace(path.partition("/")[0], endpoint.rstrip("/") if endpoint else None)


def _difference(place: BucketPlace, output: BucketPlace | None) -> str:
    """A sentence on how the store differs from that of the job's output; empty where it does not.

    That the job's output can be written says nothing of another store.
    """
    if output is None:
        return " The job's output is in another kind of store."
    if place.endpoint != output.endpoint:
        return f" The job's output is in another store, {output.store_name}."
    if place.bucket != output.bucket:
        return f" The job's output is in another bucket there, {output.bucket}."
    return ""


def _probe_endpoint(place: BucketPlace, repository: Json) -> str:
    """The endpoint, written out: this machine's environment may name another one."""
    region = repository.get("region") or DEFAULT_REGION
    return place.endpoint or f"https://s3.{region}{AWS_DOMAIN}"


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """When a pod stored no report, and why."""

    finished: datetime
    says: str


def _has_succeeded(view: ClusterView, failure: PublishFailure) -> bool:
    """Whether a later pod has stored its report, by the workflows, which outlive such pods."""
    try:
        workflows = view.list_objects(WORKFLOWS, OWN_WORKFLOWS)
        return any(_stored_report_after(workflow, failure.finished) for workflow in workflows)
    except BadInput:  # no right to read them, or nodes in Argo's database
        return False


def _stored_report_after(workflow: Json, moment: datetime) -> bool:
    for attempts in pod_attempts(workflow):
        last = attempts[-1]
        is_stored = last.step == "publish-report" and last.phase == "Succeeded"
        if is_stored and last.finished and datetime.fromisoformat(last.finished) > moment:
            return True
    return False


def _latest_failure(view: ClusterView) -> PublishFailure | None:
    """What kept a pod of the last day from storing a report. Argo deletes those that succeeded."""
    try:
        pods = view.list_objects(PODS, PUBLISHING_PODS)
    except Unreadable:
        return None
    failures = sorted(
        (str(end["finishedAt"]), object_name(pod), end) for pod in pods for end in _failed_ends(pod)
    )
    if not failures:
        return None
    finished, name, end = failures[-1]
    moment = datetime.fromisoformat(finished)
    if datetime.now(UTC) - moment > RECENT_AGE:
        return None
    message = str(end.get("message") or f"exit code {end['exitCode']}")
    reason = StepFailure("publish-report", None, 1, message).reason
    return PublishFailure(moment, f"Pod {name} stored no report at {finished}: {reason}")


def _failed_ends(pod: Json) -> Iterator[Json]:
    """How containers of a pod ended that failed."""
    for container in get_mappings(pod, "status", "containerStatuses"):
        end = get_mapping(container, "state", "terminated")
        if end.get("exitCode") and end.get("finishedAt"):
            yield end
