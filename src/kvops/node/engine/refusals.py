"""Why a request can never be served, whatever the others do."""

from __future__ import annotations

from kvops.node.wire import EngineInfo, Submit


def refusal(submit: Submit, info: EngineInfo) -> str:
    """In words; empty if it can be."""
    prompt, params = submit.prompt_token_ids, submit.params
    vocabulary, limit = info.spec.vocab_size, info.max_model_len
    if not prompt:
        return "the prompt has no tokens"
    if params.max_tokens < 1:
        return f"max_tokens is {params.max_tokens}, must be at least 1"
    total = len(prompt) + params.max_tokens
    if total > limit:
        return f"{len(prompt)} prompt tokens + max_tokens {params.max_tokens} exceed the limit of {limit} tokens"
    quota = info.kv_quota_of(submit.tenant)
    if quota is not None and -(-total // info.block_size) > quota:
        return f"the request needs more blocks than the {quota} of its tenant's quota"
    ids = (min(prompt), max(prompt), *params.logit_bias, *params.stop_token_ids)
    if not all(0 <= token < vocabulary for token in ids):
        return f"a token id is outside the vocabulary of {vocabulary}"
    return ""
