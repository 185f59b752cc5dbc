"""How many blocks the pool gets, from sizes alone: decided, or refused, before anything is loaded. No torch.

Invariant: weights, pool and activations together are at most what is free.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvops.errors import ConfigError, NodeStartError
from kvops.machine import Memory
from kvops.node.wire import PoolPlan
from kvops.units import format_bytes

LEAST_BLOCKS = 2
"""A block for a prompt and one for what follows it."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes."""

    weights: int
    activations: int
    """What a step takes beside weights and pool at the most, with what the runtime takes to prepare for it."""
    block: int
    context: int | None = None
    """Tokens of one request that were asked for, and that the pool must therefore hold."""
    known: str = ""
    """`at least `, where these are lower bounds."""


def plan_blocks(plan: PoolPlan, needs: Needs, memory: Memory) -> int:
    """Raises ConfigError for a pool too small to serve a request, NodeStartError for what does not fit."""
    left = memory.free - needs.weights - needs.activations
    if left < LEAST_BLOCKS * needs.block:
        raise _too_much(needs, LEAST_BLOCKS, memory, _lower_all_else(needs, memory))
    blocks = _asked_blocks(plan, needs.block, left)
    _check_enough(plan, needs, blocks)
    if blocks * needs.block > left:
        raise _too_much(needs, blocks, memory, _lower_the_pool(plan, needs, left))
    return blocks


def most_blocks(plan: PoolPlan, weights: int, block: int, memory: Memory) -> int:
    """More than `plan_blocks` gives for any activations: bounds the context before these are known."""
    return max(0, _asked_blocks(plan, block, memory.free - weights))


def _asked_blocks(plan: PoolPlan, block: int, left: int) -> int:
    if plan.blocks is not None:
        return plan.blocks
    wanted = plan.bytes if plan.bytes is not None else int(left * plan.memory_fraction)
    return wanted // block


def _check_enough(plan: PoolPlan, needs: Needs, blocks: int) -> None:
    if blocks < LEAST_BLOCKS:
        raise ConfigError(
            f"{_asked(plan)}: the pool holds {blocks} blocks, the least is {LEAST_BLOCKS} "
            f"(a block of {plan.block_size} tokens takes {needs.known}{format_bytes(needs.block)})",
            hint=_raise(plan, needs, LEAST_BLOCKS),
        )
    tokens = blocks * plan.block_size
    if needs.context is not None and needs.context > tokens:
        wanted = -(-needs.context // plan.block_size)
        raise ConfigError(
            f"model.max_context_length = {needs.context}: the pool ({_asked(plan)}) holds {tokens} tokens",
            hint=f"{_raise(plan, needs, wanted)}, or lower model.max_context_length to at most {tokens}",
        )


def _asked(plan: PoolPlan) -> str:
    if plan.blocks is not None:
        return f"kv_cache.blocks = {plan.blocks}"
    if plan.bytes is not None:
        return f"kv_cache.bytes = {format_bytes(plan.bytes)}"
    return f"kv_cache.memory_fraction = {plan.memory_fraction}"


def _raise(plan: PoolPlan, needs: Needs, blocks: int) -> str:
    if plan.blocks is not None:
        return f"raise kv_cache.blocks to at least {blocks}"
    size = blocks * needs.block
    if plan.bytes is not None:
        return f"raise kv_cache.bytes to at least {size}"
    return f"raise kv_cache.memory_fraction, so that it comes to {format_bytes(size)}"


def _too_much(needs: Needs, blocks: int, memory: Memory, hint: str) -> NodeStartError:
    pool = blocks * needs.block
    total = needs.weights + pool + needs.activations
    return NodeStartError(
        f"weights {format_bytes(needs.weights)} + KV pool {format_bytes(pool)} ({blocks} blocks) + activations "
        f"{format_bytes(needs.activations)} = {needs.known}{format_bytes(total)} exceed the "
        f"{format_bytes(memory.free)} that are free",
        hint=hint,
    )


def _lower_the_pool(plan: PoolPlan, needs: Needs, left: int) -> str:
    if plan.blocks is not None:
        return f"lower kv_cache.blocks to at most {left // needs.block}"
    return f"lower kv_cache.bytes to at most {_setting(left)}"


def _lower_all_else(needs: Needs, memory: Memory) -> str:
    """Even the smallest pool does not fit."""
    lacking = needs.weights + needs.activations + LEAST_BLOCKS * needs.block - memory.free
    smaller = "use a smaller model, or model.weights_dtype: int8 (a byte a parameter)"
    if lacking >= needs.activations:
        return f"{smaller}, or free {format_bytes(lacking)} more"
    share = 1 - lacking / needs.activations
    return (
        f"lower runtime.max_batch_size and runtime.max_batched_tokens to about {share:.0%} of what they are, "
        f"{smaller}, or free {format_bytes(lacking)} more"
    )


def _setting(size: int) -> str:
    """As the configuration takes it, rounded down."""
    return f"{size // 2**20}MiB" if size >= 2**20 else str(size)


def fp8_on_a_cpu() -> ConfigError:
    return ConfigError(
        "kv_cache.dtype: fp8 needs an NVIDIA GPU, and this node computes on the CPU",
        hint="use int8, which takes about as much and rounds less",
    )
