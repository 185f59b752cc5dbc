"""The settings in force: one holder, swapped whole. Who needs a setting reads it here at use, and keeps no copy.

A request keeps what it was admitted under, since that is written into it.
"""

from __future__ import annotations

from kvops.config.load import LoadedConfig
from kvops.config.schema import NodeConfig


class Settings:
    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded

    @property
    def loaded(self) -> LoadedConfig:
        """With the origin of each value."""
        return self._loaded

    @property
    def config(self) -> NodeConfig:
        return self._loaded.config

    def swap(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded
