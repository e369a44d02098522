"""What the Kubernetes API tells of a cluster: read only, and asked for once."""

from dataclasses import dataclass
from typing import cast
from urllib.parse import quote

from imagekiln.steps.errors import Missing
from imagekiln.workflows.client.failures import Forbidden
from imagekiln.workflows.client.http import ApiConnection
from imagekiln.workflows.client.kubernetes import KubernetesApi
from imagekiln.workflows.doctor.check import Unreadable
from imagekiln.workflows.objects import Json

PAGE_LIMIT = "500"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
AUTHORIZATION_API = "apis/authorization.k8s.io/v1"
DOCTOR_ADVICE = "Ask for the ClusterRole imagekiln-doctor (workflows/cluster/overlays/whole-cluster/doctor.yaml)."
SUBMITTER_ADVICE = "Ask for the Role imagekiln-submitter (workflows/cluster/base/access.yaml)."


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of object: its API and plural, and whether it lies in namespaces."""

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
        """As people say it."""
        return f"{self.verb} {self.resource}"


class ClusterView:
    """A cluster, seen from one of its namespaces. Every method raises Unseen where one may not, and TryAgain."""

    def __init__(self, connection: ApiConnection, namespace: str) -> None:
        """Take the connection that is to be used."""
        self._connection = connection
        self._listed: dict[tuple[ResourceKind, str], list[Json]] = {}
        self.url = connection.url
        self.namespace = namespace

    def version(self) -> str:
        """The API's version, such as v1.34.4."""
        return str(self._get_public("version")["gitVersion"])

    def resource_names(self, api: str) -> frozenset[str]:
        """The plurals that an API, such as apis/apps/v1, has. None where it is not there."""
        try:
            found = self._get_public(api)
        except Missing:
            return frozenset()
        return frozenset(str(each["name"]) for each in cast("list[Json]", found["resources"]))

    def get(self, kind: ResourceKind, name: str) -> Json | None:
        """An object by its name; None where there is none."""
        try:
            return self._connection.request(
                "GET", f"{self._kind_path(kind)}/{quote(name, safe='')}"
            )
        except Missing:
            return None
        except Forbidden as error:
            raise _unreadable(kind) from error

    def list_objects(
        self, kind: ResourceKind, query: str = "", *, everywhere: bool = False
    ) -> list[Json]:
        """The objects of a kind, in the namespace or in all of them; with a `query` such as labelSelector=a=b."""
        if (kind, query) not in self._listed:
            path = f"{kind.api}/{kind.plural}" if everywhere else self._kind_path(kind)
            try:
                self._listed[kind, query] = self._list_pages(path, query)
            except Missing:
                self._listed[kind, query] = []
            except Forbidden as error:
                raise _unreadable(kind, everywhere=everywhere) from error
        return self._listed[kind, query]

    def list_metadata(self, kind: ResourceKind) -> list[Json]:
        """The metadata of a kind's objects in the namespace, without the rest: a workflow can have a megabyte."""
        try:
            return self._list_pages(self._kind_path(kind), "", METADATA_ONLY)
        except Forbidden as error:
            raise _unreadable(kind) from error
        except Missing:
            return []

    def is_allowed(self, right: AccessRight) -> bool:
        """Whether who asks has a right in the namespace."""
        return self._is_review_allowed(
            f"{AUTHORIZATION_API}/selfsubjectaccessreviews",
            "SelfSubjectAccessReview",
            self._review_spec(right),
        )

    def is_account_allowed(self, account: str, right: AccessRight) -> bool:
        """Whether a service account of the namespace has a right there."""
        groups = [
            "system:serviceaccounts",
            f"system:serviceaccounts:{self.namespace}",
            "system:authenticated",
        ]
        user: Json = {"user": f"system:serviceaccount:{self.namespace}:{account}", "groups": groups}
        path = f"{AUTHORIZATION_API}/namespaces/{self.namespace}/localsubjectaccessreviews"
        return self._is_review_allowed(
            path, "LocalSubjectAccessReview", self._review_spec(right) | user
        )

    def dry_run_apply(self, made: Json) -> Json:
        """What an object of Argo's would be if it were applied. Nothing is written."""
        try:
            return KubernetesApi(self._connection).apply(made, dry_run=True)
        except Forbidden as error:
            raise Unreadable(
                f"You may not apply a {made['kind']}, not even to see what it would change.",
                SUBMITTER_ADVICE,
            ) from error

    def _get_public(self, path: str) -> Json:
        try:
            return self._connection.request("GET", path)
        except Forbidden as error:
            raise Unreadable(
                f"You may not read /{path}.", "Ask for the ClusterRole system:discovery."
            ) from error

    def _list_pages(self, path: str, query: str, accept: str = "application/json") -> list[Json]:
        key, _, value = query.partition("=")
        return list(
            self._connection.list_items(
                path, {"limit": PAGE_LIMIT} | ({key: value} if key else {}), accept
            )
        )

    def _review_spec(self, right: AccessRight) -> Json:
        resource, _, part = right.resource.partition("/")
        asked = {
            "namespace": self.namespace,
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
        }
        return {"resourceAttributes": asked | ({"subresource": part} if part else {})}

    def _is_review_allowed(self, path: str, kind: str, spec: Json) -> bool:
        # A local review must say its namespace twice.
        about: Json = {"namespace": self.namespace} if kind.startswith("Local") else {}
        body: Json = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "metadata": about,
            "spec": spec,
        }
        try:
            return bool(
                cast("Json", self._connection.request("POST", path, body=body)["status"]).get(
                    "allowed"
                )
            )
        except Forbidden as error:
            raise Unreadable(f"You may not create a {kind}.", SUBMITTER_ADVICE) from error

    def _kind_path(self, kind: ResourceKind) -> str:
        return (
            f"{kind.api}/namespaces/{self.namespace}/{kind.plural}"
            if kind.namespaced
            else f"{kind.api}/{kind.plural}"
        )


def _unreadable(kind: ResourceKind, *, everywhere: bool = False) -> Unreadable:
    return Unreadable(
        f"You may not read {kind.plural}.",
        SUBMITTER_ADVICE if kind.namespaced and not everywhere else DOCTOR_ADVICE,
    )
