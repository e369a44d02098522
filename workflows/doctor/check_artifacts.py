"""Argo's artifact repository: whether Argo can store the report that its page shows."""

from contextlib import suppress

from imagekiln.steps.job.settings_file import YAML_ERRORS, load_yaml
from imagekiln.workflows.doctor.check import DoctorCheck, doctor_check, ok, wrong
from imagekiln.workflows.doctor.check_access import READ_SECRETS, SECRETS, account_identity
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


@doctor_check("artifact-repository")
def check_artifact_repository(view: ClusterView) -> DoctorCheck:
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


def _find_missing_secrets(view: ClusterView, s3: Json) -> DoctorCheck | None:
    """Report Secrets of the repository that do not exist, if the user may read Secrets."""
    names = {str(get_mapping(s3, field).get("name", "")) for field in SECRET_FIELDS} - {""}
    if account_identity(view) is None:
        names.discard(STORAGE_SECRET)  # pods need it themselves: store-credentials reports it
    if not names or not view.is_allowed(READ_SECRETS):
        return None
    missing = sorted(name for name in names if view.get(SECRETS, name) is None)
    if not missing:
        return None
    return wrong(
        f"Argo reads its key for reports from Secret {' and '.join(missing)} of namespace "
        f"{view.namespace}, which does not exist: publish-report's pod would not start.",
        f"Create Secret {missing[0]} with the keys that the repository names, or write "
        "useSDKCreds: true instead, as cluster/base/artifacts.yaml explains.",
    )
