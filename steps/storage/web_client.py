"""HTTP for names that users write, closed to the addresses by which machines get credentials.

Whoever writes a job or an answer that redirects must not read, through a pod, what is only for it.
"""

import errno
import os
import socket
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
POD_VARIABLE = "KUBERNETES_SERVICE_HOST"
SILENCE_SECONDS = 30.0  # until an address or an answer that does not come is given up
REQUEST_SECONDS = 3600.0  # for one answer, which may be a whole table
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
    address = _embedded_address(ip_address(host.partition("%")[0]))
    if address.is_link_local or any(address in network for network in METADATA_NETWORKS):
        return True
    is_own = address.is_loopback or address.is_unspecified
    return is_own and POD_VARIABLE in os.environ


def _embedded_address(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64_NETWORK:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _open_socket(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
    family, kind, protocol, _, place = info
    if is_private_service(place[0]):
        raise RefusedAddress
    return socket.socket(family, kind, protocol)
