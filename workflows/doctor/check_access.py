"""The namespace, and what the user and the pods may do in it."""

from contextlib import suppress

from imagekiln.workflows.doctor.check import (
    DoctorCheck,
    Unreadable,
    doctor_check,
    ok,
    unknown,
    wrong,
)
from imagekiln.workflows.doctor.check_nodes import NODES
from imagekiln.workflows.doctor.cluster_view import AccessRight, ClusterView, ResourceKind
from imagekiln.workflows.objects import get_mapping, get_texts
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.pod import MODEL_SECRETS, STORAGE_SECRETS

ARGO_GROUP = "argoproj.io"
SUBMITTER_RIGHTS = (
    *(AccessRight(verb, "workflows", ARGO_GROUP) for verb in ("create", "get", "list", "patch")),
    *(AccessRight(verb, "workflowtemplates", ARGO_GROUP) for verb in ("get", "create", "patch")),
    *(AccessRight(verb, "cronworkflows", ARGO_GROUP) for verb in ("create", "get", "patch")),
    AccessRight("get", "pods/log"),
    AccessRight("list", "events"),  # what pods wait for
)
RESULT_RIGHTS = tuple(
    AccessRight(verb, "workflowtaskresults", ARGO_GROUP) for verb in ("create", "patch")
)
CHILD_WORKFLOW_RIGHTS = tuple(
    AccessRight(verb, "workflows", ARGO_GROUP) for verb in ("create", "get", "patch")
)
POD_ACCOUNT = "imagekiln"
ACCOUNT_RIGHTS = {
    POD_ACCOUNT: RESULT_RIGHTS,
    "imagekiln-further": RESULT_RIGHTS + CHILD_WORKFLOW_RIGHTS,
}
# Annotations by which clouds give the pods of a ServiceAccount rights without a key.
IDENTITY_ANNOTATIONS = (
    "eks.amazonaws.com/role-arn",
    "iam.gke.io/gcp-service-account",
    "azure.workload.identity/client-id",
)
NAMESPACES = ResourceKind("api/v1", "namespaces")
SERVICE_ACCOUNTS = ResourceKind("api/v1", "serviceaccounts", namespaced=True)
SECRETS = ResourceKind("api/v1", "secrets", namespaced=True)
READ_SECRETS = AccessRight("get", "secrets")
POD_SECURITY_LABEL = "pod-security.kubernetes.io/enforce"
APPLY_MANIFESTS = (
    "Apply the manifests: `imagekiln manifests cluster`, then "
    "`kubectl apply -k cluster/overlays/whole-cluster` (or own-namespace); docs/cluster.md has the "
    "overlay of a namespace that is not called imagekiln."
)


@doctor_check("namespace")
def check_namespace_exists(view: ClusterView, profile: Profile) -> DoctorCheck:
    """The namespace exists, and its Pod Security admits the profile's pods."""
    namespace = view.get(NAMESPACES, view.namespace)
    if namespace is None:
        return wrong(
            f"Namespace {view.namespace} does not exist.",
            f"{APPLY_MANIFESTS} Or set cluster.namespace.",
        )
    level = get_texts(namespace, "metadata", "labels").get(POD_SECURITY_LABEL)
    mounts_host_path = profile.cache is not None and profile.cache.host_path
    if level in ("restricted", "baseline") and mounts_host_path:
        return wrong(
            f"Namespace {view.namespace} enforces Pod Security {level!r}, which rejects the "
            "profile's cache.host_path.",
            "Keep models in cache.claim or cache.image, or run `kubectl label --overwrite "
            f"namespace {view.namespace} {POD_SECURITY_LABEL}=privileged`.",
        )
    admission = f"Pod Security {level!r} admits the pods" if level else "Pod Security is not set"
    return ok(f"Namespace {view.namespace} exists; {admission}.")


@doctor_check("your-rights")
def check_user_rights(view: ClusterView, *, by_server: bool = False) -> DoctorCheck:
    """The user may submit, watch, stop, schedule and read logs.

    With an Argo server, the rights of its token count, which cannot be asked from here.
    """
    missing = [str(right) for right in SUBMITTER_RIGHTS if not view.is_allowed(right)]
    if not missing:
        return ok(
            f"You can submit, watch, stop, schedule and read logs in namespace {view.namespace}."
        )
    says = f"You cannot {', '.join(missing)} in namespace {view.namespace}"
    if by_server:
        return unknown(
            f"{says} by kubeconfig. Jobs go to the Argo server, which uses the rights of "
            "ARGO_TOKEN.",
            view.submitter_advice,
        )
    return wrong(f"{says}.", view.submitter_advice)


@doctor_check("service-accounts")
def check_service_accounts(view: ClusterView) -> DoctorCheck:
    """The ServiceAccounts of the pods exist."""
    missing = [account for account in ACCOUNT_RIGHTS if view.get(SERVICE_ACCOUNTS, account) is None]
    if missing:
        place = f"namespace {view.namespace}"
        sentences = [f"ServiceAccount {account} does not exist in {place}." for account in missing]
        return wrong(" ".join(sentences), APPLY_MANIFESTS)
    return ok(f"ServiceAccounts {' and '.join(ACCOUNT_RIGHTS)} exist.")


@doctor_check("pod-rights")
def check_pod_rights(view: ClusterView) -> DoctorCheck:
    """Pods may report results to Argo's controller; those of large runs may create workflows."""
    for account, rights in ACCOUNT_RIGHTS.items():
        missing = [str(right) for right in rights if not view.is_account_allowed(account, right)]
        if missing:
            return wrong(
                f"ServiceAccount {account} cannot {', '.join(missing)} in namespace "
                f"{view.namespace}.",
                APPLY_MANIFESTS,
            )
    return ok("The pods' ServiceAccounts can report results to Argo.")


@doctor_check("store-credentials")
def check_store_credentials(view: ClusterView, output: str) -> DoctorCheck:
    """Pods have a key to the object store, or a cloud identity. No value of a key is read."""
    identity = account_identity(view)
    if identity is not None:
        return ok(f"ServiceAccount {POD_ACCOUNT} has a cloud identity: {identity}.")
    if not output.startswith(("s3://", "s3a://")):
        return unknown(
            f"ServiceAccount {POD_ACCOUNT} has no annotation of a cloud identity for {output}.",
            "Add the one that your cloud documents: "
            f"`kubectl annotate serviceaccount {POD_ACCOUNT} -n {view.namespace} KEY=VALUE`. "
            "Nothing is to be done if your cloud binds the identity in another way.",
        )
    return _find_s3_keys(view)


@doctor_check("hub-token")
def check_hub_token(view: ClusterView) -> DoctorCheck:
    """Pods have a token of the hub, as this machine has."""
    name, key = MODEL_SECRETS["HF_TOKEN"]
    if not view.is_allowed(READ_SECRETS):
        return ok(f"For a gated model, Secret {name} needs {key}. You cannot read Secrets.")
    if get_mapping(view.get(SECRETS, name), "data").get(key):
        return ok(f"Secret {name} has {key}.")
    return ok(
        f"Secret {name} has no {key}: pods read public models. But this machine has a token, and "
        "reads gated ones too. For such a model, put the token there, as "
        "cluster/base/secrets.example.yaml of `imagekiln manifests cluster` shows."
    )


def account_identity(view: ClusterView) -> str | None:
    """Return the annotation that gives the pods' ServiceAccount a cloud identity, if any."""
    account = view.get(SERVICE_ACCOUNTS, POD_ACCOUNT)
    annotations = get_texts(account, "metadata", "annotations")
    return next((key for key in IDENTITY_ANNOTATIONS if annotations.get(key)), None)


def _find_s3_keys(view: ClusterView) -> DoctorCheck:
    """Look for the Secret that pods read their S3 keys from."""
    name = next(iter(STORAGE_SECRETS.values()))[0]
    keys = [key for _, key in STORAGE_SECRETS.values()]
    if not view.is_allowed(READ_SECRETS):
        return unknown(
            "You cannot read Secrets, which is as it should be.",
            f"Ask somebody who can: Secret {name} needs {' and '.join(keys)}, unless "
            f"ServiceAccount {POD_ACCOUNT} has a cloud identity. "
            f"`kubectl describe secret {name} -n {view.namespace}` shows no values.",
        )
    # Not `kubectl create secret --from-literal`, which leaves the key in the shell's history.
    remedy = (
        "`imagekiln manifests cluster` writes cluster/base/secrets.example.yaml. Fill in a copy "
        f"for namespace {view.namespace}, and apply it: `kubectl apply -f COPY`. "
        f"Or give ServiceAccount {POD_ACCOUNT} a cloud identity."
    )
    secret = view.get(SECRETS, name)
    if secret is None and _runs_on_aws(view):
        return unknown(
            f"Secret {name} does not exist, and ServiceAccount {POD_ACCOUNT} has no annotation of "
            "a cloud identity.",
            "With EKS Pod Identity or a node's IAM role, which doctor cannot see, nothing is to be "
            f"done. Without either: {remedy}",
        )
    if secret is None:
        return wrong(f"Secret {name} does not exist in namespace {view.namespace}.", remedy)
    missing = [key for key in keys if not get_mapping(secret, "data").get(key)]
    if missing:
        return wrong(f"Secret {name} does not have {' and '.join(missing)}.", remedy)
    return ok(f"Secret {name} has {' and '.join(keys)}.")


def _runs_on_aws(view: ClusterView) -> bool:
    """Return whether nodes are AWS's, which may give pods rights that no object here shows."""
    with suppress(Unreadable):
        providers = [
            get_mapping(node, "spec").get("providerID") for node in view.list_objects(NODES)
        ]
        return any(str(provider).startswith("aws:") for provider in providers)
    return False
