"""Checks of the namespace, and of the rights of the user and the pods in it."""

from imagekiln.steps.models.hub import is_hub_id
from imagekiln.workflows.doctor.check import (
    DoctorCheck,
    Needs,
    doctor_check,
    ok,
    unknown,
    wrong,
)
from imagekiln.workflows.doctor.check_profile import CONFIG_MAPS
from imagekiln.workflows.doctor.cluster_view import AccessRight, ClusterView, ResourceKind
from imagekiln.workflows.objects import get_mapping, get_texts
from imagekiln.workflows.templates.pod import DEFAULTS_CONFIG_MAP, MODEL_SECRETS, STORAGE_SECRETS

ARGO_GROUP = "argoproj.io"
SUBMITTER_RIGHTS = (
    *(AccessRight(verb, "workflows", ARGO_GROUP) for verb in ("create", "get", "list", "patch")),
    *(AccessRight(verb, "workflowtemplates", ARGO_GROUP) for verb in ("get", "create", "patch")),
    *(AccessRight(verb, "cronworkflows", ARGO_GROUP) for verb in ("create", "get", "patch")),
    AccessRight("get", "pods/log"),
    AccessRight("list", "events"),  # the reasons why pods wait
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
# Annotations by which clouds give rights to a ServiceAccount's pods without a key.
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
def check_namespace_exists(needs: Needs) -> DoctorCheck:
    """Check that the namespace exists, and that its Pod Security admits the profile's pods."""
    name = needs.view.namespace
    namespace = needs.view.get(NAMESPACES, name)
    if namespace is None:
        return wrong(
            f"Namespace {name} does not exist.", f"{APPLY_MANIFESTS} Or set cluster.namespace."
        )
    level = get_texts(namespace, "metadata", "labels").get(POD_SECURITY_LABEL)
    cache = needs.profile.cache
    if level in ("restricted", "baseline") and cache and cache.host_path:
        return wrong(
            f"Namespace {name} enforces Pod Security {level!r}, which rejects the profile's "
            "cache.host_path.",
            "Keep models in cache.claim or cache.image, or run `kubectl label --overwrite "
            f"namespace {name} {POD_SECURITY_LABEL}=privileged`.",
        )
    return ok(f"Namespace {name} exists, with Pod Security {level or 'privileged'!r}.")


@doctor_check("your-rights")
def check_user_rights(needs: Needs) -> DoctorCheck:
    """Check that the user may submit, watch, stop, schedule and read logs.

    With an Argo server, the rights of its token decide, which cannot be read from here.
    """
    view = needs.view
    missing = [str(right) for right in SUBMITTER_RIGHTS if not view.is_allowed(right)]
    if not missing:
        return ok(
            f"You can submit, watch, stop, schedule and read logs in namespace {view.namespace}."
        )
    says = f"You cannot {', '.join(missing)} in namespace {view.namespace}"
    if needs.server is not None:
        return unknown(
            f"{says} by kubeconfig. Jobs go to the Argo server, which uses the rights of "
            "ARGO_TOKEN.",
            view.submitter_advice,
        )
    return wrong(f"{says}.", view.submitter_advice)


@doctor_check("service-accounts")
def check_service_accounts(needs: Needs) -> DoctorCheck:
    """Check that the ServiceAccounts of the pods exist."""
    view = needs.view
    missing = [account for account in ACCOUNT_RIGHTS if view.get(SERVICE_ACCOUNTS, account) is None]
    if missing:
        names = " and ".join(missing)
        return wrong(f"No ServiceAccount {names} in namespace {view.namespace}.", APPLY_MANIFESTS)
    return ok(f"ServiceAccounts {' and '.join(ACCOUNT_RIGHTS)} exist.")


@doctor_check("pod-rights")
def check_pod_rights(needs: Needs) -> DoctorCheck:
    """Check that pods may report results to Argo, and in large runs create workflows."""
    view = needs.view
    for account, rights in ACCOUNT_RIGHTS.items():
        missing = [str(right) for right in rights if not view.is_allowed(right, account)]
        if missing:
            return wrong(
                f"ServiceAccount {account} cannot {', '.join(missing)} in namespace "
                f"{view.namespace}.",
                APPLY_MANIFESTS,
            )
    return ok("The pods' ServiceAccounts can report results to Argo.")


@doctor_check("store-credentials")
def check_store_credentials(needs: Needs) -> DoctorCheck:
    """Check that pods have a key to the object store or a cloud identity. Reads no key's value."""
    view = needs.view
    annotations = get_texts(view.get(SERVICE_ACCOUNTS, POD_ACCOUNT), "metadata", "annotations")
    identity = next((key for key in IDENTITY_ANNOTATIONS if annotations.get(key)), None)
    if identity is not None:
        return ok(f"ServiceAccount {POD_ACCOUNT} has a cloud identity: {identity}.")
    if needs.job.output.startswith(("s3://", "s3a://")):
        return _find_s3_keys(view)
    return unknown(
        f"ServiceAccount {POD_ACCOUNT} has no annotation of a cloud identity for "
        f"{needs.job.output}.",
        "Add the one that your cloud documents: "
        f"`kubectl annotate serviceaccount {POD_ACCOUNT} -n {view.namespace} KEY=VALUE`. "
        "Nothing is to be done if your cloud binds the identity in another way.",
    )


def _find_s3_keys(view: ClusterView) -> DoctorCheck:
    """Look for the Secret from which pods read their S3 keys."""
    name = next(iter(STORAGE_SECRETS.values()))[0]
    keys = [key for _, key in STORAGE_SECRETS.values()]
    if not view.is_allowed(READ_SECRETS):
        return unknown(
            "You cannot read Secrets, which is as it should be.",
            f"Ask somebody who can: Secret {name} needs {' and '.join(keys)}, unless "
            f"ServiceAccount {POD_ACCOUNT} has a cloud identity.",
        )
    # Not `kubectl create secret --from-literal`, which leaves the key in the shell's history.
    remedy = (
        "`imagekiln manifests cluster` writes cluster/base/secrets.example.yaml. Fill in a copy "
        f"for namespace {view.namespace}, and apply it: `kubectl apply -f COPY`."
    )
    secret = view.get(SECRETS, name)
    if secret is None:
        defaults = get_texts(view.get(CONFIG_MAPS, DEFAULTS_CONFIG_MAP), "data")
        says = f"Secret {name} does not exist in namespace {view.namespace}."
        if defaults.get("AWS_ENDPOINT_URL"):  # in this case, AWS roles give no right to the store
            return wrong(says, remedy)
        return unknown(
            says, f"{remedy} With EKS Pod Identity or a node's IAM role, nothing is to be done."
        )
    missing = [key for key in keys if not get_mapping(secret, "data").get(key)]
    if missing:
        return wrong(f"Secret {name} does not have {' and '.join(missing)}.", remedy)
    return ok(f"Secret {name} has {' and '.join(keys)}.")


@doctor_check("hub-token")
def check_hub_token(needs: Needs) -> DoctorCheck | None:
    """Check that pods have a token of the hub if this machine has one."""
    from huggingface_hub import get_token

    if not is_hub_id(needs.job.model.id) or not get_token():
        return None
    name, key = MODEL_SECRETS["HF_TOKEN"]
    if not needs.view.is_allowed(READ_SECRETS):
        return None
    if get_mapping(needs.view.get(SECRETS, name), "data").get(key):
        return ok(f"Secret {name} has {key}.")
    return ok(
        f"Secret {name} has no {key}: pods read public models. But this machine has a token, and "
        "reads gated ones too. For such a model, put the token there, as "
        "cluster/base/secrets.example.yaml of `imagekiln manifests cluster` shows."
    )
