"""Whether Argo can keep the report that its page shows."""

from collections.abc import Iterator

import yaml

from imagekiln.workflows.doctor.check import Finding, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_access import SECRETS, account_identity
from imagekiln.workflows.doctor.check_namespace import CONFIG_MAPS
from imagekiln.workflows.doctor.cluster_view import AccessRight, ClusterView
from imagekiln.workflows.doctor.kube_fields import get_mapping, get_texts
from imagekiln.workflows.objects import Json
from imagekiln.workflows.templates.pod import STORAGE_SECRETS

REPOSITORIES_CONFIG_MAP = "artifact-repositories"
DEFAULT_REPOSITORY_ANNOTATION = "workflows.argoproj.io/default-artifact-repository"
STORAGE_SECRET = STORAGE_SECRETS["AWS_ACCESS_KEY_ID"][0]
KEYLESS_ADVICE = "Make it, or write useSDKCreds: true in place of the Secrets, as workflows/cluster/base/artifacts.yaml says."
APPLY_ARTIFACTS = "Apply workflows/cluster/base/artifacts.yaml with your bucket, or set report_artifact: false in a profile."


@doctor_check("report-artifact")
def check_report_artifact(view: ClusterView) -> Finding:
    """Argo has a place for the report, and what it is reached by: without that, aggregate's pod does not start."""
    found = view.get(CONFIG_MAPS, REPOSITORIES_CONFIG_MAP)
    if found is None:
        return wrong(f"There is no ConfigMap {REPOSITORIES_CONFIG_MAP}.", APPLY_ARTIFACTS)
    key, there = (
        get_texts(found, "metadata", "annotations").get(DEFAULT_REPOSITORY_ANNOTATION),
        get_texts(found, "data"),
    )
    if key not in there:
        return wrong(
            f"ConfigMap {REPOSITORIES_CONFIG_MAP} has no repository that its annotation {DEFAULT_REPOSITORY_ANNOTATION} names.",
            APPLY_ARTIFACTS,
        )
    place = get_mapping(_parse_yaml(there[key]), "s3")
    if not place:
        return wrong(
            f"{REPOSITORIES_CONFIG_MAP}/{key} is no S3 repository, which the report needs.",
            APPLY_ARTIFACTS,
        )
    return _check_secrets(view, place) or ok(
        f"Argo keeps reports by {REPOSITORIES_CONFIG_MAP}/{key}."
    )


def _parse_yaml(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _check_secrets(view: ClusterView, place: Json) -> Finding | None:
    """What is wrong, or not to be seen, with the Secrets that a repository names."""
    apart = account_identity(view) is not None
    # Without an identity, the pods have the key too, and store-credentials says where it is missing.
    names = sorted(set(_secret_names(place)) - (set() if apart else {STORAGE_SECRET}))
    if view.is_allowed(AccessRight("get", "secrets")):
        missing = [name for name in names if view.get(SECRETS, name) is None]
        says = f"Argo keeps reports by Secret {' and '.join(missing)}, which is not there:"
        return (
            wrong(f"{says} aggregate's pod would not start.", KEYLESS_ADVICE) if missing else None
        )
    if names and apart:
        says = f"The pods' account has an identity, but Argo keeps reports by Secret {' and '.join(names)}."
        return unknown(
            f"{says} Where that is not there, aggregate's pod does not start.", KEYLESS_ADVICE
        )
    return None


def _secret_names(place: Json) -> Iterator[str]:
    for key in ("accessKeySecret", "secretKeySecret", "sessionTokenSecret"):
        if name := get_mapping(place, key).get("name"):
            yield str(name)
