"""What a template costs is bounded by what it does, not by how long it is or how large its messages are."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import pytest

from kvops.errors import ModelCorrupt
from kvops.models.chat import ChatTemplate
from kvops.models.sandbox import MAX_CPU_SECONDS

USER = [{"role": "user", "content": "hi"}]
SORTED = "{% set a = range(99999)|list|map('string')|sort|length %}"
COSTLY = {
    "one costly filter, many times": SORTED * 100,
    "a slow filter on a long text": "{{ ('a '*8000000)|title|length }}",
    "a slow filter, many times": "{% set a = ('a '*500000)|wordcount %}" * 300,
    "many long texts": "".join(f"{{% set a{n} = 'x'*16000000 ~ '' %}}" for n in range(60)),
    "many slices": "{% set a = 'x'*16000000 %}" + "{% set b = a[1:] %}" * 3000,
    "many comparisons": "{% set a = [0]*99999 %}{% set c = [0]*99999 %}" + "{% set b = a == c %}" * 5000,
    "many searches": "{% set a = 'x'*16000000 %}" + "{% set b = 'y' in a %}" * 5000,
    "many tests": "{% set a = 'x'*16000000 %}" + "{% set b = 'y' is in a %}" * 5000,
    "many parts": "{{ ('a '*8000000).split()|length }}",
    "many parts by a separator": "{{ ('a '*8000000).split(' ')|length }}",
    "many lines": "{{ ('\\n'*16000000).splitlines()|length }}",
    "a text taken for a list": "{{ ('a'*16000000)|list|length }}",
    "a loop over plain text": "{% for i in range(99999) %}" + "x" * 200_000 + "{% endfor %}",
    "a loop that skips": "{% for i in range(99999) if range(9999)|list|sort|length == 0 %}{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("source", COSTLY.values(), ids=COSTLY.keys())
def test_it_ends_within_its_computing_time_and_memory(source: str) -> None:
    """Seen in a process of its own, whose memory is bounded, since its peak is what counts."""
    program = (
        "import sys, time\n"
        "from kvops.models.chat import ChatTemplate\n"
        "from kvops.errors import ModelCorrupt\n"
        "source = sys.stdin.read()\n"
        "began = time.thread_time()\n"
        "template = ChatTemplate(source, {})\n"
        "seconds = time.thread_time() - began\n"
        "assert not template.available\n"
        "try:\n"
        "    template.render([{'role': 'user', 'content': 'hi'}])\n"
        "except ModelCorrupt as error:\n"
        "    print(seconds, error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=source, capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)),
    )  # fmt: skip
    assert "goes over its bounds" in done.stdout, done.stdout + done.stderr[-2000:]
    assert float(done.stdout.split()[0]) < 3 * MAX_CPU_SECONDS


def test_what_no_greeting_shows_still_ends() -> None:
    template = ChatTemplate("{% if messages|length > 1 %}" + SORTED * 100 + "{% endif %}ok", {})
    assert template.render(USER) == "ok"
    began = time.thread_time()
    with pytest.raises(ModelCorrupt, match="computing"):
        template.render(USER * 2)
    assert time.thread_time() - began < 3 * MAX_CPU_SECONDS
    assert template.render(USER) == "ok"


def test_what_a_template_may_use_gives_what_it_gave() -> None:
    source = (
        "{{ 'a b'.split() }}{{ 'a,b'.rsplit(',', 1) }}{{ 'a\nb'.splitlines() }}{{ 'ab'[::-1] }}"
        "{{ ' x y '|trim|title }}{{ [3, 1, 2]|sort|join('-') }}{{ 1 == 1 and 'a' in 'cab' }}"
        "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}"
        "{% for m in messages if m.role == 'user' %}<{{ m.content }}>{% endfor %}"
    )
    shown = ChatTemplate(source, {}).render(USER)
    assert shown == "['a', 'b']['a', 'b']['a', 'b']baX Y1-2-3True1<hi>"
