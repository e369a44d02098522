"""Whether Argo can keep the report that its page shows."""

from collections.abc import Iterator

import yaml

from imagekiln.workflows.connection import Json
from imagekiln.workflows.doctor import check_access
from imagekiln.workflows.doctor.check import Finding, check, ok, unknown, wrong
from imagekiln.workflows.doctor.check_access import SECRETS
from imagekiln.workflows.doctor.check_namespace import CONFIG_MAPS
from imagekiln.workflows.doctor.fields import part, texts
from imagekiln.workflows.doctor.kubernetes_view import KubernetesView, Right
from imagekiln.workflows.pods import STORAGE

REPOSITORIES = "artifact-repositories"
DEFAULT = "workflows.argoproj.io/default-artifact-repository"
KEY = STORAGE["AWS_ACCESS_KEY_ID"][0]
KEYLESS = "Make it, or write useSDKCreds: true in place of the Secrets, as workflows/cluster/base/artifacts.yaml says."
APPLY = "Apply workflows/cluster/base/artifacts.yaml with your bucket, or set report_artifact: false in a profile."


@check("report-artifact")
def artifacts(view: KubernetesView) -> Finding:
    """Argo has a place for the report, and what it is reached by: without that, aggregate's pod does not start."""
    found = view.get(CONFIG_MAPS, REPOSITORIES)
    if found is None:
        return wrong(f"There is no ConfigMap {REPOSITORIES}.", APPLY)
    key, there = texts(found, "metadata", "annotations").get(DEFAULT), texts(found, "data")
    if key not in there:
        return wrong(f"ConfigMap {REPOSITORIES} has no repository that its annotation {DEFAULT} names.", APPLY)
    place = part(_read(there[key]), "s3")
    if not place:
        return wrong(f"{REPOSITORIES}/{key} is no S3 repository, which the report needs.", APPLY)
    return _reached(view, place) or ok(f"Argo keeps reports by {REPOSITORIES}/{key}.")


def _read(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _reached(view: KubernetesView, place: Json) -> Finding | None:
    """What is wrong, or not to be seen, with the Secrets that a repository names."""
    apart = check_access.identity(view) is not None
    # Without an identity, the pods have the key too, and store-credentials says where it is missing.
    names = sorted(set(_secrets(place)) - (set() if apart else {KEY}))
    if view.may(Right("get", "secrets")):
        missing = [name for name in names if view.get(SECRETS, name) is None]
        says = f"Argo keeps reports by Secret {' and '.join(missing)}, which is not there:"
        return wrong(f"{says} aggregate's pod would not start.", KEYLESS) if missing else None
    if names and apart:
        says = f"The pods' account has an identity, but Argo keeps reports by Secret {' and '.join(names)}."
        return unknown(f"{says} Where that is not there, aggregate's pod does not start.", KEYLESS)
    return None


def _secrets(place: Json) -> Iterator[str]:
    for key in ("accessKeySecret", "secretKeySecret", "sessionTokenSecret"):
        if name := part(place, key).get("name"):
            yield str(name)
