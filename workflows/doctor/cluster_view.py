"""A cluster as doctor sees it: read-only, each list requested once."""

from dataclasses import dataclass
from typing import cast
from urllib.parse import quote

from imagekiln.steps.errors import Missing
from imagekiln.workflows.client.http import ApiConnection, Forbidden
from imagekiln.workflows.doctor.check import Unreadable
from imagekiln.workflows.objects import Json, get_mapping, get_mappings

PAGE_LIMIT = "500"
AUTHORIZATION_GROUP = "authorization.k8s.io/v1"
AUTHORIZATION_API = f"apis/{AUTHORIZATION_GROUP}"
CLUSTER_READER_ADVICE = (
    "Ask a cluster administrator for the ClusterRole imagekiln-doctor: "
    "`imagekiln manifests cluster`, `kubectl apply -k cluster/overlays/whole-cluster`, then "
    "`kubectl create clusterrolebinding NAME --clusterrole=imagekiln-doctor --user=YOU`."
)
DISCOVERY_ADVICE = "Ask a cluster administrator for the ClusterRole system:discovery."


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of object: the path of its API, its plural, and whether it is namespaced."""

    api: str
    plural: str
    namespaced: bool = False


@dataclass(frozen=True, slots=True)
class AccessRight:
    """A verb on a resource of the namespace, such as get on pods/log."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        """The verb and the resource, as in `get pods/log`."""
        return f"{self.verb} {self.resource}"


class ClusterView:
    """A cluster, seen from one of its namespaces. Every method raises Unreadable and TryAgain."""

    def __init__(self, connection: ApiConnection, namespace: str) -> None:
        """Use a connection; nothing is sent yet."""
        self._connection = connection
        self._lists: dict[tuple[ResourceKind, str, bool], list[Json]] = {}
        self.url = connection.url
        self.namespace = namespace

    @property
    def submitter_advice(self) -> str:
        """Explain how the user gets the rights of a submitter in the namespace."""
        return (
            "Ask an administrator for the Role imagekiln-submitter: "
            f"`kubectl create rolebinding NAME -n {self.namespace} "
            "--role=imagekiln-submitter --user=YOU`."
        )

    def version(self) -> str:
        """The version of Kubernetes, such as v1.34.4."""
        return str(self._get_public("version").get("gitVersion", ""))

    def resource_names(self, api: str) -> frozenset[str]:
        """The plurals that an API such as apis/apps/v1 serves; none where it does not exist."""
        try:
            resources = get_mappings(self._get_public(api), "resources")
        except Missing:
            return frozenset()
        return frozenset(str(resource.get("name")) for resource in resources)

    def get(self, kind: ResourceKind, name: str) -> Json | None:
        """An object by its name; None if it does not exist."""
        try:
            return self._connection.request("GET", f"{self._path(kind)}/{quote(name, safe='')}")
        except Missing:
            return None
        except Forbidden as error:
            raise self._unreadable(kind) from error

    def list_objects(
        self, kind: ResourceKind, query: str = "", *, everywhere: bool = False
    ) -> list[Json]:
        """The objects of a kind that match a query such as labelSelector=a=b.

        In the namespace, or `everywhere` on the cluster.
        """
        key = (kind, query, everywhere)
        if key not in self._lists:
            path = f"{kind.api}/{kind.plural}" if everywhere else self._path(kind)
            try:
                self._lists[key] = self._list_pages(path, query)
            except Missing:
                self._lists[key] = []
            except Forbidden as error:
                raise self._unreadable(kind, everywhere=everywhere) from error
        return self._lists[key]

    def is_allowed(self, right: AccessRight) -> bool:
        """Return whether the user has a right in the namespace."""
        body = self._review("SelfSubjectAccessReview", right)
        return self._send_review(f"{AUTHORIZATION_API}/selfsubjectaccessreviews", body)

    def is_account_allowed(self, account: str, right: AccessRight) -> bool:
        """Return whether a ServiceAccount of the namespace has a right there."""
        body = self._review("LocalSubjectAccessReview", right)
        body["metadata"] = {"namespace": self.namespace}
        body["spec"] = _account_spec(self.namespace, account) | cast("Json", body["spec"])
        path = f"{AUTHORIZATION_API}/namespaces/{self.namespace}/localsubjectaccessreviews"
        return self._send_review(path, body)

    def _path(self, kind: ResourceKind) -> str:
        if kind.namespaced:
            return f"{kind.api}/namespaces/{self.namespace}/{kind.plural}"
        return f"{kind.api}/{kind.plural}"

    def _get_public(self, path: str) -> Json:
        """Read what Kubernetes shows to every authenticated user by default."""
        try:
            return self._connection.request("GET", path)
        except Forbidden as error:
            raise Unreadable(f"You cannot read /{path}.", DISCOVERY_ADVICE) from error

    def _list_pages(self, path: str, query: str) -> list[Json]:
        parameters = {"limit": PAGE_LIMIT}
        if query:
            key, _, value = query.partition("=")
            parameters[key] = value
        return list(self._connection.list_items(path, parameters))

    def _review(self, kind: str, right: AccessRight) -> Json:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "namespace": self.namespace,
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
        }
        if subresource:
            attributes["subresource"] = subresource
        return {
            "apiVersion": AUTHORIZATION_GROUP,
            "kind": kind,
            "metadata": {},
            "spec": {"resourceAttributes": attributes},
        }

    def _send_review(self, path: str, body: Json) -> bool:
        try:
            answer = self._connection.request("POST", path, body=body)
        except Forbidden as error:
            raise Unreadable(
                f"You cannot create a {body['kind']}.", self.submitter_advice
            ) from error
        return bool(get_mapping(answer, "status").get("allowed"))

    def _unreadable(self, kind: ResourceKind, *, everywhere: bool = False) -> Unreadable:
        in_namespace = kind.namespaced and not everywhere
        advice = self.submitter_advice if in_namespace else CLUSTER_READER_ADVICE
        return Unreadable(f"You cannot read {kind.plural}.", advice)


def _account_spec(namespace: str, account: str) -> Json:
    """A ServiceAccount as an access review names it, with the groups that it is in."""
    return {
        "user": f"system:serviceaccount:{namespace}:{account}",
        "groups": [
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ],
    }
