"""Which machines may hold a connection to a listener, and how many at once. Decided by the address of the socket alone.

What a header says of a client's address is never believed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Protocol

import structlog

from kvops.errors import Forbidden, QueueFull, RequestError

Network = IPv4Network | IPv6Network
_QUIET_SECONDS = 1.0
"""Between two lines in the log: whoever is refused must not fill it."""
_SHARE_AT_ONCE = 32

log = structlog.get_logger("kvops.listener")


class Holder(Protocol):
    """A connection that is held."""

    address: str

    def spare_for(self) -> float | None:
        """Seconds for which it could have been closed without harm to a request; None while it must not be."""
        ...

    def give_way(self) -> None:
        """Close, and count no more."""
        ...


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
        self.gave_way = 0
        """Connections that were closed to make room."""
        self._logged_at = 0.0

    def check(self, address: str, held: int, holders: Iterable[Holder] = ()) -> None:
        """`held`: connections, the new one among them. When they are too many, the one of `holders` that can best be
        spared is closed. Raises Forbidden, QueueFull.
        """
        if not self._of_the_networks(address):
            raise self._refuse("network", address, Forbidden(
                f"connections from {address} are not accepted.",
                hint="The node's operator can list its network in server.allow_networks.",
            ))  # fmt: skip
        if held > self.most and not self._make_room(holders):
            raise self._refuse("full", address, QueueFull(
                f"the node holds {self.most} connections, its bound."
            ))  # fmt: skip

    def _make_room(self, holders: Iterable[Holder]) -> bool:
        """Of the addresses that hold most of what can be spared: whoever fills the listener gives way to the rest.

        Some at once, since a flood must not cost a look at all of them for each that comes.
        """
        spare = [(each, seconds) for each in holders if (seconds := each.spare_for()) is not None]
        if not spare:
            return False
        shares = Counter(each.address for each, _ in spare)
        spare.sort(key=lambda one: (shares[one[0].address], one[1]), reverse=True)
        for each, _ in spare[: max(1, self.most // _SHARE_AT_ONCE)]:
            each.give_way()
            self.gave_way += 1
        if self._may_log():
            log.warning("connections_full", most=self.most, closed_idle=self.gave_way)
        return True

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
        if self._may_log():
            log.warning(
                "connection_refused", reason=reason, client=address, so_far=self.refused[reason]
            )
        return error

    def _may_log(self) -> bool:
        now = time.monotonic()
        if now - self._logged_at < _QUIET_SECONDS:
            return False
        self._logged_at = now
        return True
