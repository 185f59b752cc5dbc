"""The line of the start-up report about quality: what is known of the formats that the engine chose, or was told."""

from __future__ import annotations

from kvops.models.evaluation import Evaluation, find, is_exact
from kvops.models.store import StoredModel, evaluations_of
from kvops.node.wire import EngineInfo


def quality_line(info: EngineInfo, model: StoredModel) -> str:
    """Evaluated or not, with the next step where there is one; never an error."""
    weights, kv = info.weights_dtype, info.kv_dtype
    if is_exact(weights, kv):
        return "float32 weights and KV: exact"
    formats = f"{weights} weights with {kv} KV"
    if model.manifest is None:
        return f"{formats}: not evaluated, a model read in place keeps no figures; kvops model pull stores it"
    command = f"kvops model eval {model.name} --weights {weights} --kv {kv}"
    known = find(evaluations_of(model.manifest), weights, kv, info.device)
    if known is None:
        return f"{formats}: not evaluated; next: {command}"
    origin = "" if known in model.manifest.evaluations else ", says the catalog"
    return f"{formats}: {_figures(known)}{origin}{_doubt(known, command)}"


def _figures(known: Evaluation) -> str:
    recall = f", recall {known.recalled} of {known.needles}" if known.needles else ""
    same = f"{known.top1_agreement * 100:.1f} % the same top token"
    return f"{known.summary}, {same}{recall}"


def _doubt(known: Evaluation, command: str) -> str:
    match known.verdict:
        case "over":
            return "; more than 1 %: leave model.weights_dtype and kv_cache.dtype to auto"
        case "inconclusive":
            return f"; inconclusive: {command} --tokens {4 * known.tokens}"
    return ""
