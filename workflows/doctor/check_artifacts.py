"""Argo's artifact repository: whether Argo can store the report that its page shows."""

from contextlib import suppress

from imagekiln.steps.errors import KilnError
from imagekiln.steps.job.settings_file import YAML_ERRORS, load_yaml
from imagekiln.steps.storage import open_store
from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_access import READ_SECRETS, SECRETS, account_identity
from imagekiln.workflows.doctor.check_object_store import (
    PLAINTEXT_ADVICE,
    WHOSE_CREDENTIALS,
    probe_store,
    storage_finding,
)
from imagekiln.workflows.doctor.check_profile import CONFIG_MAPS
from imagekiln.workflows.doctor.cluster_view import ClusterView
from imagekiln.workflows.objects import Json, get_mapping, get_texts
from imagekiln.workflows.templates.pod import STORAGE_SECRETS

REPOSITORIES_CONFIG_MAP = "artifact-repositories"
DEFAULT_REPOSITORY_ANNOTATION = "workflows.argoproj.io/default-artifact-repository"
STORAGE_SECRET = STORAGE_SECRETS["AWS_ACCESS_KEY_ID"][0]
SECRET_FIELDS = ("accessKeySecret", "secretKeySecret", "sessionTokenSecret")
APPLY_ARTIFACTS = (
    "`imagekiln manifests cluster` writes cluster/base/artifacts.yaml. Put your bucket into a "
    "patch of it in your own overlay (docs/cluster.md) and run `kubectl apply -k` on that, or set "
    "report_artifact: false in a profile of your own."
)
LOGS_ADVICE = (
    "Argo fails a pod whose log it cannot store, so a store out of reach fails the workflow. "
    "Remove archiveLogs unless you want that."
)
AWS_DOMAIN = ".amazonaws.com"
DEFAULT_REGION = "us-east-1"
INSECURE_ADVICE = (
    "The store does not use TLS: write `insecure: true` below its endpoint in ConfigMap "
    "artifact-repositories (artifacts.yaml, or your overlay's patch of it), and apply that."
)


@doctor_check("artifact-repository")
def check_artifact_repository(view: ClusterView) -> Finding:
    """Argo has a repository for reports and logs, and the key to it; pods wait for both."""
    config_map = view.get(CONFIG_MAPS, REPOSITORIES_CONFIG_MAP)
    if config_map is None:
        return wrong(
            f"ConfigMap {REPOSITORIES_CONFIG_MAP} does not exist in namespace {view.namespace}.",
            APPLY_ARTIFACTS,
        )
    repository = _read_repository(config_map)
    s3 = get_mapping(repository, "s3")
    if not s3:
        return wrong(
            f"ConfigMap {REPOSITORIES_CONFIG_MAP} has no S3 repository under the key that its "
            f"annotation {DEFAULT_REPOSITORY_ANNOTATION} names.",
            APPLY_ARTIFACTS,
        )
    problem = _find_missing_secrets(view, s3)
    if problem is not None:
        return problem
    if repository.get("archiveLogs"):
        # Argo then ignores what the workflow says.
        return ok(
            "Argo stores reports. Its archiveLogs: true stores the logs of all pods too.",
            LOGS_ADVICE,
        )
    return ok(f"Argo stores reports in bucket {s3.get('bucket')}.")


def _read_repository(config_map: Json | None) -> Json:
    """Return the artifact repository that Argo uses by default; empty without one."""
    annotations = get_texts(config_map, "metadata", "annotations")
    key = annotations.get(DEFAULT_REPOSITORY_ANNOTATION, "")
    with suppress(*YAML_ERRORS):
        return get_mapping(load_yaml(get_texts(config_map, "data").get(key, "")))
    return {}


def _find_missing_secrets(view: ClusterView, s3: Json) -> Finding | None:
    """Report Secrets of the repository that do not exist, or perhaps do not."""
    names = {str(get_mapping(s3, field).get("name", "")) for field in SECRET_FIELDS} - {""}
    if account_identity(view) is None:
        names.discard(STORAGE_SECRET)  # pods need it themselves: store-credentials reports it
    can_read = view.is_allowed(READ_SECRETS)
    missing = sorted(name for name in names if not can_read or view.get(SECRETS, name) is None)
    if not missing:
        return None
    says = (
        f"Argo reads its key for reports from Secret {' and '.join(missing)} of namespace "
        f"{view.namespace}, without which publish-report's pod does not start"
    )
    remedy = (
        f"Create Secret {missing[0]} with the keys that the repository names, or write "
        "useSDKCreds: true instead, as cluster/base/artifacts.yaml explains."
    )
    if can_read:
        return wrong(f"{says}: it does not exist.", remedy)
    return unknown(f"{says}; you cannot read Secrets.", remedy)


@doctor_check("artifact-store")
def check_artifact_store(view: ClusterView) -> Finding:
    """Argo's store takes an object, with this machine's key; it is removed again."""
    repository = get_mapping(_read_repository(view.get(CONFIG_MAPS, REPOSITORIES_CONFIG_MAP)), "s3")
    bucket = str(repository.get("bucket", ""))
    endpoint = _store_endpoint(repository)
    where = f"Bucket {bucket} at {endpoint or 'AWS'}"
    # Written out: this machine's environment may name another one.
    region = repository.get("region") or DEFAULT_REGION
    probed = endpoint or f"https://s3.{region}{AWS_DOMAIN}"
    try:
        leftover = probe_store(open_store(f"s3://{bucket}", probed), careful=False)
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


def _store_endpoint(repository: Json) -> str | None:
    """Return the URL of a repository's store; None for AWS."""
    endpoint = str(repository.get("endpoint", ""))
    if not endpoint or endpoint.partition(":")[0].endswith(AWS_DOMAIN):
        return None
    scheme = "http" if repository.get("insecure") else "https"
    return f"{scheme}://{endpoint}"
