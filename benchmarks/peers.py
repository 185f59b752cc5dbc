"""Whom the engine is held against: figures of the same kind of machine, or a peer measured in this very run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.client import prompt, stream, tokens_per_second


@dataclass(frozen=True)
class Peer:
    name: str
    single: float
    """tok/s of one stream."""
    many: float | None
    """Output tok/s at 32 streams."""
    prefill: float
    """Prompt tok/s at about 1,024 tokens."""
    measured: bool = False

    def figure(self, value: float) -> str:
        where = "" if self.measured else ", not measured here"
        return f"{self.name} {value:.0f} tok/s{where}"


LLAMA_CPP = Peer("llama.cpp (Q4_1)", single=80, many=None, prefill=156)
VLLM = Peer("vLLM 0.32 CPU (fp32)", single=20, many=89, prefill=394)
"""Both: the same model on 2 AVX2 cores, docs/performance.md."""

_LLAMA_CPP = """
import json, sys, time
from llama_cpp import Llama
path, threads = json.loads(sys.argv[1])
model = Llama(path, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
words = model.tokenize(b"the quick brown fox jumps over the lazy dog " * 200)[:1024]
def once(tokens, count):
    model.reset()
    begun = time.perf_counter()
    found = model.generate(tokens, temp=0.0)
    next(found)
    first = time.perf_counter()
    for _ in range(count - 1):
        next(found)
    return first - begun, (time.perf_counter() - first) / max(1, count - 1)
once(words[:64], 4)
prefill = min(once(words, 1)[0] for _ in range(3))
token = min(once(words[:64], 128)[1] for _ in range(3))
print(json.dumps([1 / token, len(words) / prefill]))
"""


def llama_cpp(model: Path, threads: int) -> Peer:
    """Measured now, in a process of its own. Exits if it is not installed."""
    if importlib.util.find_spec("llama_cpp") is None:
        sys.exit("--peer llama_cpp: pip install llama-cpp-python first (it builds for minutes)")
    command = [sys.executable, "-c", _LLAMA_CPP, json.dumps([str(model), threads])]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    single, prefill = json.loads(result.stdout.strip().splitlines()[-1])
    return Peer("llama.cpp", single, None, prefill, measured=True)


def server(url: str) -> Peer:
    """Any OpenAI server, over HTTP, with the prompts that our own node gets."""
    model = httpx.get(url + "/v1/models", timeout=30).json()["data"][0]["id"]
    stream(url, model, prompt(900, 50), 8)
    one = stream(url, model, prompt(901, 50), 128)
    single = (one.tokens - 1) / (one.arrivals[-1] - one.arrivals[0])
    first = stream(url, model, prompt(902, 1012), 1)
    many = tokens_per_second(url, model, 32, 108, 64)
    return Peer(url, single, many, 1024 / first.ttft, measured=True)
