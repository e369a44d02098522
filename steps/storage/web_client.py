"""HTTP for names that users write, closed to the addresses by which machines get credentials.

Whoever writes a job or an answer that redirects must not read, through a pod, what is only for it.
"""

import errno
import os
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

# By which clouds give their machines identities, as far as they are not link-local.
METADATA_NETWORKS = tuple(
    map(
        ip_network,
        (
            "100.100.100.200/32",  # Alibaba
            "168.63.129.16/32",  # Azure
            "192.0.0.192/32",  # Oracle
            "fd00:ec2::/32",  # AWS
            "fd20:ce::/32",  # Google
        ),
    )
)
NAT64_NETWORK = ip_network("64:ff9b::/96")
# Where a network chooses prefixes of its own (RFC 8215), of these lengths in bytes (RFC 6052).
LOCAL_NAT64_NETWORK = ip_network("64:ff9b:1::/48")
LOCAL_NAT64_PREFIXES = (6, 7, 8, 11)
POD_VARIABLE = "KUBERNETES_SERVICE_HOST"
SILENCE_SECONDS = 30.0  # until an address or an answer that does not come is given up
REQUEST_SECONDS = 3600.0  # for one answer, which may be a whole table
LOWEST_BYTES_PER_SECOND = 4096
Address = IPv4Address | IPv6Address


class RefusedAddress(OSError):
    """A name leads to an address that nobody's job may read."""

    def __init__(self) -> None:
        """Say the same of all addresses of a name, so that it is said once."""
        super().__init__(errno.EACCES, "the address is not for jobs")


class SlowServer(OSError):
    """A server sends so little that an answer would take for ever."""

    def __init__(self) -> None:
        """Say the same of all servers."""
        super().__init__(errno.ETIMEDOUT, "the server sends less than 4 kB a second")


async def open_web_client(**options: Any) -> Any:  # noqa: ANN401  # as fsspec has it
    """A client that connects to no address that `is_private_service` refuses.

    Each connection is judged by its address, whatever name or redirect led to it. A server that
    falls silent, or sends hardly anything, is given up.
    """
    import aiohttp

    from imagekiln.steps.storage.web_response import PacedResponse

    connector = aiohttp.TCPConnector(socket_factory=_open_socket)
    limits = aiohttp.ClientTimeout(
        total=REQUEST_SECONDS, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS
    )
    return aiohttp.ClientSession(
        connector=connector, timeout=limits, response_class=PacedResponse, **options
    )


def is_private_service(host: str) -> bool:
    """Whether an IP address is that of a metadata service, or in a pod one of the pod itself."""
    is_own = POD_VARIABLE in os.environ and any(map(is_own_address, _meant_by(host)))
    return is_own or is_metadata_service(host)


def is_metadata_service(host: str) -> bool:
    """Whether an IP address is one by which a machine gets credentials."""
    return any(map(_is_of_metadata, _meant_by(host)))


def is_own_address(address: Address) -> bool:
    """Whether an address is one of this machine or pod, from which it would reach itself."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((str(address), 9))  # sends nothing, but finds where it would be sent from
        return ip_address(probe.getsockname()[0].partition("%")[0]) == address
    return False  # no way leads there


def _is_of_metadata(address: Address) -> bool:
    return address.is_link_local or any(address in network for network in METADATA_NETWORKS)


def _meant_by(host: str) -> list[Address]:
    """The address, and the IPv4 addresses that it may stand for where it is one of IPv6."""
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv4Address):
        return [address]
    embedded = [address.ipv4_mapped, address.sixtofour]
    content = address.packed
    if address in NAT64_NETWORK:
        embedded.append(IPv4Address(content[12:]))
    if address in LOCAL_NAT64_NETWORK:
        digits = content[:8] + content[9:]  # the byte between is always zero
        candidates = (IPv4Address(digits[start:][:4]) for start in LOCAL_NAT64_PREFIXES)
        embedded += [candidate for candidate in candidates if not candidate.is_unspecified]
    return [address, *(meant for meant in embedded if meant is not None)]


def _open_socket(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
    family, kind, protocol, _, place = info
    if is_private_service(place[0]):
        raise RefusedAddress
    return socket.socket(family, kind, protocol)
