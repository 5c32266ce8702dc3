"""Warns of a service that is reached over the network without TLS."""

import logging
from ipaddress import ip_address
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

_PLAIN_SCHEMES = frozenset({"http", "ftp", "webhdfs"})


def warn_of_plain_url(url: str, remedy: str) -> None:
    """Warn of a URL that is reached without TLS, unless it is on this machine.

    Args:
        url: May hold secrets: only its scheme and host are shown.
        remedy: What to do instead.
    """
    parts = urlsplit(url)
    if parts.scheme in _PLAIN_SCHEMES and not is_loopback(parts.hostname or ""):
        _warn(f"{parts.scheme}://{parts.hostname}", remedy)


def warn_of_plain_brokers(servers: str, protocol: str, remedy: str) -> None:
    """Warn of brokers that are reached without TLS, unless all of them are on this machine.

    Args:
        servers: ``host:port``, separated by commas.
        protocol: Kafka's ``security.protocol``.
        remedy: What to do instead.
    """
    hosts = [
        server.strip().rpartition("://")[2].rpartition(":")[0] for server in servers.split(",")
    ]
    if protocol.strip().upper().endswith("PLAINTEXT"):
        for host in hosts:
            if not is_loopback(host.strip("[]")):
                _warn(f"{protocol}://{host}", remedy)
                return


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name or address; no name is looked up."""
    if host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _warn(where: str, remedy: str) -> None:
    logger.warning(
        "anyone on the network can read and change what goes to a service without TLS: "
        "service=%s: %s",
        where,
        remedy,
    )
