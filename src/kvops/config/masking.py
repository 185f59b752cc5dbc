"""Settings as they may be shown: what a secret might be in, is covered. Secrets themselves are in no setting."""

from __future__ import annotations

import re
from typing import Any

COVER = "******"
_USER = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY = re.compile(r"(://[^?#\s]*\?)[^#\s]+")


def masked(value: Any) -> Any:
    """A value as JSON, with the credentials of each URL in it covered."""
    if isinstance(value, str):
        return _QUERY.sub(rf"\1{COVER}", _USER.sub(COVER, value)) if "://" in value else value
    if isinstance(value, dict):
        return {key: masked(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    return value
