"""Where the cluster's API is, and the credentials for it: from the environment or kubeconfig."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from imagekiln.steps.errors import BadInput, KilnError, TryAgain
from imagekiln.workflows.client.failures import root_cause_message
from imagekiln.workflows.client.http import ApiAccess

if TYPE_CHECKING:
    from kubernetes.client import Configuration

SERVER_VARIABLE = "ARGO_SERVER"  # the variables are those that the argo CLI reads
SERVER_VARIABLES = ("ARGO_BASE_URL", SERVER_VARIABLE)  # the first of them counts


def server_from_environment() -> str | None:
    """The Argo server that the environment names, if any."""
    variable = server_variable()
    return os.environ[variable] if variable else None


def server_variable() -> str | None:
    """The variable that names the Argo server, the first of those that are set, if any."""
    return next(filter(os.environ.get, SERVER_VARIABLES), None)


def argo_server_access(url: str, environment: Mapping[str, str] = os.environ) -> ApiAccess:
    """Access to an Argo server by its URL, or by host:port as the argo CLI writes it.

    Raises BadInput.
    """
    address = url
    if "://" not in url:
        url = _server_url(url, environment)
    if not url.startswith(("https://", "http://")):
        raise BadInput(
            f"{url}: is not the URL of an Argo server{_origin(address)}. Write https://host:port."
        )

    token = environment.get("ARGO_TOKEN", "").strip()
    if token and " " not in token:
        token = f"Bearer {token}"

    return ApiAccess(
        url,
        token=lambda: token or None,
        verify=_server_verification(environment),
        proxy=_environment_proxy(url),
        origin=_origin(address),
    )


def _origin(address: str) -> str:
    """Which variable a server's address is from, where two of them name different ones."""
    variable = server_variable()
    addresses = {os.environ[name] for name in SERVER_VARIABLES if os.environ.get(name)}
    if variable is None or os.environ[variable] != address or len(addresses) == 1:
        return ""
    return f", from {variable}"


def kubernetes_access(context: str | None = None) -> ApiAccess:
    """Access to the Kubernetes API by a context of kubeconfig; in a pod, by its service account.

    Without a name, kubeconfig's current context is used. Raises BadInput.
    """
    configuration, origin = _load_configuration(context)
    certificate = None
    if configuration.cert_file and configuration.key_file:
        certificate = (configuration.cert_file, configuration.key_file)

    def token() -> str | None:
        # Called for each request: the Kubernetes client renews a token that is about to expire.
        with _translate_kubeconfig_errors():
            bearer = configuration.auth_settings().get("BearerToken")
        return None if bearer is None else bearer["value"]

    return ApiAccess(
        configuration.host,
        token,
        verify=_kubernetes_verification(configuration),
        certificate=certificate,
        proxy=configuration.proxy or _environment_proxy(configuration.host),
        server_name=configuration.tls_server_name,
        origin=origin,
    )


def _is_in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _kubeconfig_path() -> str:
    """The file of kubeconfig, or several with colons between them; in a pod, what stands for it."""
    from kubernetes.config import kube_config

    if _is_in_pod():
        return "the pod's service account"
    return str(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)


def _server_url(address: str, environment: Mapping[str, str]) -> str:
    """The URL of host:port: HTTPS unless the environment turns it off."""
    secure = environment.get("ARGO_SECURE", "true").lower() not in ("false", "0")
    scheme = "https" if secure else "http"
    path = environment.get("ARGO_BASE_HREF", "").strip("/")
    return f"{scheme}://{address}/{path}"


def _server_verification(environment: Mapping[str, str]) -> bool | str:
    """Whether to verify the server's certificate; a path is a file of authorities."""
    if environment.get("ARGO_INSECURE_SKIP_VERIFY", "").lower() in ("true", "1"):
        return False
    return environment.get("REQUESTS_CA_BUNDLE") or environment.get("SSL_CERT_FILE") or True


def _load_configuration(context: str | None) -> tuple["Configuration", str]:
    """What the Kubernetes client reads, and where it is from, as a clause."""
    from kubernetes import config
    from kubernetes.client import Configuration

    configuration = Configuration()
    # Configuration takes HTTPS_PROXY without NO_PROXY. Kubeconfig may still name a proxy.
    configuration.proxy = None
    origin = f", from {_kubeconfig_path()}"
    with _translate_kubeconfig_errors():
        if _is_in_pod():
            config.load_incluster_config(client_configuration=configuration)
        else:
            _require_context(context)
            config.load_kube_config(context=context, client_configuration=configuration)
            origin += f", context {context or config.list_kube_config_contexts()[1]['name']}"
        for name in ("proxy", "tls_server_name"):
            value = getattr(configuration, name)
            if not isinstance(value, str | None):
                raise TypeError(f"{value!r} is no {name.replace('_', ' ')}")
    return configuration, origin


@contextmanager
def _translate_kubeconfig_errors() -> Iterator[None]:
    """Turn errors of reading a kubeconfig, or of the login that it describes, into sentences.

    The Kubernetes client checks next to nothing of the file: what it holds decides what is raised.
    """
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except KilnError:
        raise
    except (HTTPError, RequestException) as error:
        raise TryAgain(
            f"kubeconfig: its login could not be renewed ({root_cause_message(error)}). "
            "Check the network, then run again."
        ) from error
    except Exception as error:
        path = _kubeconfig_path()
        text, *_ = str(error).partition("{")  # then an entry of the file, with its token or key
        reason = " ".join(text.split()).rstrip(".") or "it is not a kubeconfig"
        if not any(Path(name).expanduser().exists() for name in path.split(os.pathsep)):
            reason = "no such file"
        raise BadInput(
            f"kubeconfig: names no cluster ({path}: {reason}). Set KUBECONFIG; for commands "
            f"other than doctor, --server or {SERVER_VARIABLE} will do."
        ) from error


def _require_context(name: str | None) -> None:
    """Raise BadInput where kubeconfig can be read and has no context of this name."""
    from kubernetes import config

    if name is None:
        return
    try:
        contexts, _ = config.list_kube_config_contexts()
    except config.ConfigException:  # loading it says what is wrong with the file
        return
    names = [str(context["name"]) for context in contexts]
    if name not in names:
        raise BadInput(
            f"kubeconfig: has no context {name!r}; there are: {', '.join(names)}. "
            "Choose one of them."
        )


def _kubernetes_verification(configuration: "Configuration") -> bool | str:
    if not configuration.verify_ssl:
        return False
    return configuration.ssl_ca_cert or os.environ.get("REQUESTS_CA_BUNDLE") or True


def _environment_proxy(url: str) -> str | None:
    """The environment's proxy for a URL, as kubectl chooses it: none for loopback and NO_PROXY."""
    from requests.utils import get_environ_proxies, select_proxy

    host = urlsplit(url).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return None
    return select_proxy(url, get_environ_proxies(url))
