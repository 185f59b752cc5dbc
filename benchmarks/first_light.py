"""Start-up, first paint, throughput at 16 streams against transformers one at a time, and KV waste."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from benchmarks.client import WORDS
from benchmarks.node import KVOPS, Node, pull_default_model, running_node
from benchmarks.table import Row
from kvops.telemetry.snapshot import Known

STREAMS = 16
PROMPT_WORDS = 100
NEW_TOKENS = 64
BASELINE_REQUESTS = 3


def measure() -> Iterator[Row]:
    model = pull_default_model()
    yield _help()
    peer = _transformers_tokens_per_second(model)
    with running_node() as node:
        yield Row(
            "start to ready",
            f"{node.start_seconds:.2f} s",
            "wall clock",
            node.start_seconds,
            10,
            False,
            " s",
        )
        yield _first_paint(node)
        yield _throughput(node, peer, "as a node starts by default (int8)")
        yield _waste(node)
    exact = {"KVOPS_MODEL__WEIGHTS_DTYPE": "float32", "KVOPS_KV_CACHE__DTYPE": "float32"}
    with running_node(settings=exact) as node:
        yield _throughput(node, peer, "fp32")


def _help() -> Row:
    def once() -> float:
        begun = time.perf_counter()
        subprocess.run([*KVOPS, "--help"], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun

    seconds = statistics.median(once() for _ in range(5))
    return Row(
        "kvops --help", f"{seconds:.3f} s", "wall clock, median of 5", seconds, 0.5, False, " s"
    )


def _first_paint(node: Node) -> Row:
    seconds = statistics.median(_paint_once(node) for _ in range(3))
    return Row(
        "first console paint",
        f"{seconds:.2f} s",
        "wall clock, median of 3",
        seconds,
        1.0,
        False,
        " s",
    )


def _paint_once(node: Node) -> float:
    """Seconds from the start of `kvops tui` in a pseudo-terminal to the first frame that names a screen."""
    begun = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(
            node.environment() | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "35"}
        )
        os.execv(sys.executable, [*KVOPS, "tui"])
    try:
        seen = b""
        while b"Fleet" not in seen:
            if not select.select([terminal], [], [], 15)[0]:
                raise RuntimeError("no paint within 15 s")
            seen += os.read(terminal, 65536)
        return time.perf_counter() - begun
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(child, 0)


def _prompt(number: int, words: int = PROMPT_WORDS) -> str:
    return f"Report {number}. " + " ".join(
        f"The {WORDS[(number + i * 7) % 10]} {i}" for i in range(words // 3)
    )


def _complete(node: Node, number: int, new_tokens: int, words: int = PROMPT_WORDS) -> int:
    body = {
        "model": "smollm2-135m",
        "prompt": _prompt(number, words),
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    reply = httpx.post(node.url + "/v1/completions", json=body, timeout=300)
    reply.raise_for_status()
    return int(reply.json()["usage"]["completion_tokens"])


def _throughput(node: Node, peer: float, formats: str) -> Row:
    _complete(node, 999, 8)
    begun = time.perf_counter()
    with ThreadPoolExecutor(STREAMS) as pool:
        tokens = sum(pool.map(lambda i: _complete(node, i, NEW_TOKENS), range(STREAMS)))
    rate = tokens / (time.perf_counter() - begun)
    return Row(
        f"output at {STREAMS} streams, {formats}",
        f"{rate:.0f} tok/s",
        f"transformers generate, fp32, one at a time: {peer:.1f} tok/s",
        rate / peer,
        3,
        True,
        " ×",
    )


def _waste(node: Node) -> Row:
    """Mean waste while 8 sequences pass through about 500 tokens."""
    samples: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            kv = node.snapshot().kv
            if isinstance(kv, Known) and kv.value.used_blocks:
                samples.append(kv.value.waste_ratio)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: _complete(node, 100 + i, 60, words=330), range(8)))
    done.set()
    watcher.join()
    mean = statistics.mean(samples)
    return Row(
        "KV waste at 500 tokens",
        f"{mean:.2%}",
        f"{len(samples)} readings",
        mean * 100,
        4,
        False,
        " %",
    )


_BASELINE = """
import json, os, sys, time
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the engine does: a fair peer on a shared machine
import torch
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
from kvops.models.checkpoint import open_checkpoint
from kvops.models.tokenizer import load_tokenizer
path, prompts, new = json.loads(sys.argv[1])
torch.set_num_threads(len(os.sched_getaffinity(0)))
checkpoint, tokenizer = open_checkpoint(Path(path)), load_tokenizer(Path(path))
spec = checkpoint.spec
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=spec.vocab_size, hidden_size=spec.hidden_size, intermediate_size=spec.intermediate_size,
    num_hidden_layers=spec.n_layers, num_attention_heads=spec.n_heads, num_key_value_heads=spec.n_kv_heads,
    head_dim=spec.head_dim, max_position_embeddings=spec.max_context_length, rms_norm_eps=spec.rms_norm_eps,
    rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
    tie_word_embeddings=spec.tie_embeddings, pad_token_id=None,
)).float().eval()
weights = {name: torch.from_numpy(array) for name, array in checkpoint.tensors()}
missing, unexpected = model.load_state_dict(weights, strict=False)
assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
def run(text):
    ids = torch.tensor([tokenizer.encode_prompt(text)])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False
        )
    return out.shape[1] - ids.shape[1]
run(prompts[0])
begun = time.perf_counter()
tokens = sum(run(text) for text in prompts)
print(json.dumps(tokens / (time.perf_counter() - begun)))
"""


def _transformers_tokens_per_second(model: Path) -> float:
    prompts = [_prompt(i) for i in range(BASELINE_REQUESTS)]
    argument = json.dumps([str(model), prompts, NEW_TOKENS])
    command = [sys.executable, "-c", _BASELINE, argument]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(result.stdout.strip().splitlines()[-1])
