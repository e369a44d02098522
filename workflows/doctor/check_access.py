"""Whether the namespace is there, and people and pods may do there what they must."""

from imagekiln.workflows.doctor.check import Finding, Unseen, check, ok, unknown, wrong
from imagekiln.workflows.doctor.fields import part, texts
from imagekiln.workflows.doctor.kubernetes_view import SUBMITTER, Kind, KubernetesView, Right
from imagekiln.workflows.doctor.node_fit import NODES
from imagekiln.workflows.pods import STORAGE
from imagekiln.workflows.profile import Profile

ARGO = "argoproj.io"
OURS = (
    *(Right(verb, "workflows", ARGO) for verb in ("create", "get", "list", "patch")),
    *(Right(verb, "workflowtemplates", ARGO) for verb in ("get", "create", "patch")),
    *(Right(verb, "cronworkflows", ARGO) for verb in ("create", "get", "patch")),
    Right("get", "pods/log"),
)
RESULTS = tuple(Right(verb, "workflowtaskresults", ARGO) for verb in ("create", "patch"))
FURTHER = tuple(Right(verb, "workflows", ARGO) for verb in ("create", "get", "list", "patch", "watch"))
ACCOUNTS = {"imagekiln": RESULTS, "imagekiln-further": RESULTS + FURTHER}
# By them, clouds give a service account's pods rights without a key.
IDENTITIES = ("eks.amazonaws.com/role-arn", "iam.gke.io/gcp-service-account", "azure.workload.identity/client-id")
NAMESPACES = Kind("api/v1", "namespaces")
SERVICE_ACCOUNTS = Kind("api/v1", "serviceaccounts", namespaced=True)
SECRETS = Kind("api/v1", "secrets", namespaced=True)
SECURITY = "pod-security.kubernetes.io/enforce"
APPLY = "Apply the manifests: kubectl apply -k workflows/cluster/overlays/whole-cluster (or own-namespace)."


@check("namespace")
def namespace(view: KubernetesView, profile: Profile) -> Finding:
    """The namespace is there, and its Pod Security lets the profile's pods in."""
    found = view.get(NAMESPACES, view.namespace)
    if found is None:
        return wrong(f"There is no namespace {view.namespace}.", f"{APPLY} Or set cluster.namespace.")
    level = texts(found, "metadata", "labels").get(SECURITY)
    if level in ("restricted", "baseline") and profile.cache and profile.cache.host_path:
        says = f"{view.namespace} enforces Pod Security {level!r}, which refuses the profile's cache.host_path."
        return wrong(says, f"Keep models in cache.claim or cache.image, or label the namespace {SECURITY}=privileged.")
    return ok(f"{view.namespace} is there; Pod Security {f'{level!r} lets our pods in' if level else 'is not set'}.")


@check("your-rights")
def rights(view: KubernetesView, *, by_server: bool = False) -> Finding:
    """Who asks may submit, watch, stop, schedule and read logs; Argo's server asks what its own token may."""
    missing = [str(right) for right in OURS if not view.may(right)]
    if not missing:
        return ok(f"You may submit, watch, stop and schedule in {view.namespace}, and read logs.")
    says = f"You may not {', '.join(missing)} in {view.namespace}"
    if by_server:
        return unknown(f"{says}, by kubeconfig; Argo's server goes by ARGO_TOKEN.", SUBMITTER)
    return wrong(f"{says}.", SUBMITTER)


@check("service-accounts")
def accounts(view: KubernetesView) -> Finding:
    """The pods' accounts are there."""
    missing = [account for account in ACCOUNTS if view.get(SERVICE_ACCOUNTS, account) is None]
    if missing:
        return wrong(f"There is no service account {' and no '.join(missing)}.", APPLY)
    return ok(f"{' and '.join(ACCOUNTS)} are there.")


@check("pod-rights")
def pod_rights(view: KubernetesView) -> Finding:
    """Pods may hand their outputs to Argo's controller, and those of large runs start further workflows."""
    for account, wanted in ACCOUNTS.items():
        missing = [str(right) for right in wanted if not view.account_may(account, right)]
        if missing:
            return wrong(f"Service account {account} may not {', '.join(missing)}.", APPLY)
    return ok("Pods may hand in their results.")


@check("store-credentials")
def credentials(view: KubernetesView, output: str) -> Finding:
    """Pods have a key to the object store, or an identity that stands for one. No value is looked at."""
    if found := identity(view):
        return ok(f"Service account imagekiln has an identity: {found}.")
    if not output.startswith(("s3://", "s3a://")):
        remedy = "Annotate it as your cloud says, or bind its identity to the account in another way."
        return unknown(f"Service account imagekiln shows no identity for {output}.", remedy)
    secret, keys = next(iter(STORAGE.values()))[0], [key for _, key in STORAGE.values()]
    if not view.may(Right("get", "secrets")):
        remedy = f"Ask who may: Secret {secret} needs {' and '.join(keys)}, or the account imagekiln an identity."
        return unknown("You may not read Secrets, which is as it should be.", remedy)
    found_secret = view.get(SECRETS, secret)
    if found_secret is None and _on_aws(view):
        remedy = f"EKS Pod Identity and a node's role are not to be seen from here; without one, make Secret {secret}."
        return unknown(f"There is no Secret {secret}, and service account imagekiln shows no identity.", remedy)
    there = part(found_secret, "data")
    if missing := [key for key in keys if not there.get(key)]:
        remedy = "Fill in workflows/cluster/base/secrets.example.yaml, or annotate the account with an identity."
        return wrong(f"Secret {secret} does not have {' and '.join(missing)}.", remedy)
    return ok(f"Secret {secret} has {' and '.join(keys)}.")


def identity(view: KubernetesView) -> str | None:
    """The annotation by which the pods' account has an identity that stands for a key, if it has one."""
    account = texts(view.get(SERVICE_ACCOUNTS, "imagekiln"), "metadata", "annotations")
    return next((key for key in IDENTITIES if account.get(key)), None)


def _on_aws(view: KubernetesView) -> bool:
    """Whether the nodes are AWS's, which may give pods rights that no object of the namespace shows."""
    try:
        return any(str(part(node, "spec").get("providerID", "")).startswith("aws:") for node in view.find(NODES))
    except Unseen:
        return False
