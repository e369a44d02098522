"""Argo's artifact store as this pod has it: whether it answers, before Argo's own container waits.

Argo's container tries a store that does not answer for five minutes, and says little of it.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagekiln.steps.errors import TryAgain, first_line

TEMPLATE_FILE = Path("/var/run/argo/template")  # where Argo leaves the template for its own program
CONNECT_TIMEOUT = 5.0  # seconds, for each address of the host
DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ArtifactStore:
    """An S3 store by its endpoint, and the bucket there."""

    scheme: str
    host: str
    port: int
    bucket: str

    @property
    def url(self) -> str:
        """The bucket's address, for messages."""
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}/{self.bucket}"


def read_artifact_store(template_file: Path = TEMPLATE_FILE) -> ArtifactStore | None:
    """The store in which Argo will put this pod's artifacts; None where nothing here names it."""
    try:
        template = json.loads(template_file.read_text(encoding="utf-8"))
        return _parse_location(template["archiveLocation"]["s3"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # another kind of store, or another version of Argo: its own container decides


def _parse_location(s3: Mapping[str, object]) -> ArtifactStore:
    """A store from the location that Argo writes, whose endpoint is host:port, or a host alone."""
    scheme = "http" if s3.get("insecure") else "https"
    endpoint = str(s3["endpoint"])
    host, _, port = endpoint.rpartition(":")
    if not port.isdecimal():
        host = endpoint
        port = str(DEFAULT_PORTS[scheme])
    return ArtifactStore(
        scheme=scheme,
        host=host.strip("[]"),
        port=int(port),
        bucket=str(s3.get("bucket", "")),
    )


def require_answer(store: ArtifactStore) -> None:
    """Raise TryAgain unless the store accepts a connection within seconds."""
    try:
        socket.create_connection((store.host, store.port), CONNECT_TIMEOUT).close()
    except OSError as error:
        cause = first_line(error.strerror or str(error))
        raise TryAgain(f"{store.url}: Argo's artifact store does not answer ({cause}).") from error
