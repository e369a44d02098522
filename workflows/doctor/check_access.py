"""Whether the namespace is there, and people and pods may do there what they must."""

from imagekiln.workflows.doctor.check import Finding, Unreadable, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import (
    SUBMITTER_ADVICE,
    AccessRight,
    ClusterView,
    ResourceKind,
)
from imagekiln.workflows.doctor.kube_fields import get_mapping, get_texts
from imagekiln.workflows.doctor.node_fit import NODES
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.pod import STORAGE_SECRETS

ARGO_GROUP = "argoproj.io"
SUBMITTER_RIGHTS = (
    *(AccessRight(verb, "workflows", ARGO_GROUP) for verb in ("create", "get", "list", "patch")),
    *(AccessRight(verb, "workflowtemplates", ARGO_GROUP) for verb in ("get", "create", "patch")),
    *(AccessRight(verb, "cronworkflows", ARGO_GROUP) for verb in ("create", "get", "patch")),
    AccessRight("get", "pods/log"),
)
RESULT_RIGHTS = tuple(
    AccessRight(verb, "workflowtaskresults", ARGO_GROUP) for verb in ("create", "patch")
)
CHILD_WORKFLOW_RIGHTS = tuple(
    AccessRight(verb, "workflows", ARGO_GROUP)
    for verb in ("create", "get", "list", "patch", "watch")
)
ACCOUNT_RIGHTS = {
    "imagekiln": RESULT_RIGHTS,
    "imagekiln-further": RESULT_RIGHTS + CHILD_WORKFLOW_RIGHTS,
}
# By them, clouds give a service account's pods rights without a key.
IDENTITY_ANNOTATIONS = (
    "eks.amazonaws.com/role-arn",
    "iam.gke.io/gcp-service-account",
    "azure.workload.identity/client-id",
)
NAMESPACES = ResourceKind("api/v1", "namespaces")
SERVICE_ACCOUNTS = ResourceKind("api/v1", "serviceaccounts", namespaced=True)
SECRETS = ResourceKind("api/v1", "secrets", namespaced=True)
POD_SECURITY_LABEL = "pod-security.kubernetes.io/enforce"
APPLY_MANIFESTS = "Apply the manifests: kubectl apply -k workflows/cluster/overlays/whole-cluster (or own-namespace)."


@doctor_check("namespace")
def check_namespace_exists(view: ClusterView, profile: Profile) -> Finding:
    """The namespace is there, and its Pod Security lets the profile's pods in."""
    found = view.get(NAMESPACES, view.namespace)
    if found is None:
        return wrong(
            f"There is no namespace {view.namespace}.",
            f"{APPLY_MANIFESTS} Or set cluster.namespace.",
        )
    level = get_texts(found, "metadata", "labels").get(POD_SECURITY_LABEL)
    if level in ("restricted", "baseline") and profile.cache and profile.cache.host_path:
        says = f"{view.namespace} enforces Pod Security {level!r}, which refuses the profile's cache.host_path."
        return wrong(
            says,
            f"Keep models in cache.claim or cache.image, or label the namespace {POD_SECURITY_LABEL}=privileged.",
        )
    return ok(
        f"{view.namespace} is there; Pod Security {f'{level!r} lets our pods in' if level else 'is not set'}."
    )


@doctor_check("your-rights")
def check_user_rights(view: ClusterView, *, by_server: bool = False) -> Finding:
    """Who asks may submit, watch, stop, schedule and read logs; Argo's server asks what its own token may."""
    missing = [str(right) for right in SUBMITTER_RIGHTS if not view.is_allowed(right)]
    if not missing:
        return ok(f"You may submit, watch, stop and schedule in {view.namespace}, and read logs.")
    says = f"You may not {', '.join(missing)} in {view.namespace}"
    if by_server:
        return unknown(
            f"{says}, by kubeconfig; Argo's server goes by ARGO_TOKEN.", SUBMITTER_ADVICE
        )
    return wrong(f"{says}.", SUBMITTER_ADVICE)


@doctor_check("service-accounts")
def check_service_accounts(view: ClusterView) -> Finding:
    """The pods' accounts are there."""
    missing = [account for account in ACCOUNT_RIGHTS if view.get(SERVICE_ACCOUNTS, account) is None]
    if missing:
        return wrong(f"There is no service account {' and no '.join(missing)}.", APPLY_MANIFESTS)
    return ok(f"{' and '.join(ACCOUNT_RIGHTS)} are there.")


@doctor_check("pod-rights")
def check_pod_rights(view: ClusterView) -> Finding:
    """Pods may hand their outputs to Argo's controller, and those of large runs start further workflows."""
    for account, wanted in ACCOUNT_RIGHTS.items():
        missing = [str(right) for right in wanted if not view.is_account_allowed(account, right)]
        if missing:
            return wrong(
                f"Service account {account} may not {', '.join(missing)}.", APPLY_MANIFESTS
            )
    return ok("Pods may hand in their results.")


@doctor_check("store-credentials")
def check_store_credentials(view: ClusterView, output: str) -> Finding:
    """Pods have a key to the object store, or an identity that stands for one. No value is looked at."""
    if found := account_identity(view):
        return ok(f"Service account imagekiln has an identity: {found}.")
    if not output.startswith(("s3://", "s3a://")):
        remedy = (
            "Annotate it as your cloud says, or bind its identity to the account in another way."
        )
        return unknown(f"Service account imagekiln shows no identity for {output}.", remedy)
    secret, keys = (
        next(iter(STORAGE_SECRETS.values()))[0],
        [key for _, key in STORAGE_SECRETS.values()],
    )
    if not view.is_allowed(AccessRight("get", "secrets")):
        remedy = f"Ask who may: Secret {secret} needs {' and '.join(keys)}, or the account imagekiln an identity."
        return unknown("You may not read Secrets, which is as it should be.", remedy)
    found_secret = view.get(SECRETS, secret)
    if found_secret is None and _runs_on_aws(view):
        remedy = f"EKS Pod Identity and a node's role are not to be seen from here; without one, make Secret {secret}."
        return unknown(
            f"There is no Secret {secret}, and service account imagekiln shows no identity.", remedy
        )
    there = get_mapping(found_secret, "data")
    if missing := [key for key in keys if not there.get(key)]:
        remedy = "Fill in workflows/cluster/base/secrets.example.yaml, or annotate the account with an identity."
        return wrong(f"Secret {secret} does not have {' and '.join(missing)}.", remedy)
    return ok(f"Secret {secret} has {' and '.join(keys)}.")


def account_identity(view: ClusterView) -> str | None:
    """The annotation by which the pods' account has an identity that stands for a key, if it has one."""
    account = get_texts(view.get(SERVICE_ACCOUNTS, "imagekiln"), "metadata", "annotations")
    return next((key for key in IDENTITY_ANNOTATIONS if account.get(key)), None)


def _runs_on_aws(view: ClusterView) -> bool:
    """Whether the nodes are AWS's, which may give pods rights that no object of the namespace shows."""
    try:
        return any(
            str(get_mapping(node, "spec").get("providerID", "")).startswith("aws:")
            for node in view.list_objects(NODES)
        )
    except Unreadable:
        return False
