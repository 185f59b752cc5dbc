"""Which machines may hold a connection to a listener, and how many at once. Decided by the address of the socket alone.

What a header says of a client's address is never believed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

import structlog

from kvops.errors import Forbidden, QueueFull, RequestError

Network = IPv4Network | IPv6Network
_QUIET_SECONDS = 1.0
"""Between two lines in the log: whoever is refused must not fill it."""

log = structlog.get_logger("kvops.listener")


class Peers:
    """`most` connections at once; of `networks` only, unless there are none."""

    def __init__(self, most: int, networks: Sequence[Network] = ()) -> None:
        self.most = most
        self.leaving = 0
        """Connections that were refused and are not gone yet."""
        self.refused: Counter[str] = Counter(network=0, full=0)
        self.networks = tuple(networks)
        """May be replaced; those who are connected stay."""
        self.on_refused: Callable[[str, str], None] = lambda code, address: None
        """Called for each connection that ends before it carries a request."""
        self._logged_at = 0.0

    def check(self, address: str, held: int) -> None:
        """`held`: connections, the new one among them. Raises Forbidden, QueueFull."""
        if not self._of_the_networks(address):
            raise self._refuse("network", address, Forbidden(
                f"connections from {address} are not accepted.",
                hint="The node's operator can list its network in server.allow_networks.",
            ))  # fmt: skip
        if held > self.most:
            raise self._refuse("full", address, QueueFull(
                f"the node holds {self.most} connections, its bound."
            ))  # fmt: skip

    def _of_the_networks(self, address: str) -> bool:
        if not self.networks:
            return True
        try:
            peer = ip_address(address)
        except ValueError:
            return False
        if peer.version == 6 and peer.ipv4_mapped is not None:  # on a socket for both versions
            peer = peer.ipv4_mapped
        return any(peer in network for network in self.networks)

    def _refuse(self, reason: str, address: str, error: RequestError) -> RequestError:
        self.refused[reason] += 1
        if time.monotonic() - self._logged_at >= _QUIET_SECONDS:
            self._logged_at = time.monotonic()
            log.warning(
                "connection_refused", reason=reason, client=address, so_far=self.refused[reason]
            )
        return error
