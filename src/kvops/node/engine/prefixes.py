"""Names the full blocks of a request, so that equal beginnings are found: one hash chain a request.

Invariant: blocks under different tenants' salts never have the same name. Blocks under the shared salt hold the
tokens of a prefix that the operator listed, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvops.node.engine.block_pool import ROOT, BlockKey, block_key
from kvops.node.engine.request import Request

_SHARED_SALT = b"shared"


class PrefixNames:
    def __init__(self, block_size: int, shared: Iterable[Sequence[int]] = ()) -> None:
        self._block_size = block_size
        self._shared: set[bytes] = set()
        """Digests of the full blocks of the shared prefixes."""
        for tokens in shared:
            self._share(tokens)

    def extend(self, request: Request, blocks: int) -> None:
        """Name the first `blocks` full blocks of the request."""
        for index in range(len(request.keys), blocks):
            parent = request.keys[-1].digest if request.keys else ROOT
            tokens = self._block(request.tokens, index)
            request.keys.append(
                self._shared_key(request, index, parent, tokens)
                or block_key(parent, request.salt, tokens)
            )

    def _shared_key(
        self, request: Request, index: int, parent: bytes, tokens: Sequence[int]
    ) -> BlockKey | None:
        """None once the request has left the shared prefixes."""
        if not self._shared or request.shared_keys < index:
            return None
        key = block_key(parent, _SHARED_SALT, tokens)
        if key.digest not in self._shared:
            return None
        request.shared_keys += 1
        return key

    def _share(self, tokens: Sequence[int]) -> None:
        parent = ROOT
        for index in range(len(tokens) // self._block_size):
            parent = block_key(parent, _SHARED_SALT, self._block(tokens, index)).digest
            self._shared.add(parent)

    def _block(self, tokens: Sequence[int], index: int) -> Sequence[int]:
        return tokens[index * self._block_size : (index + 1) * self._block_size]
