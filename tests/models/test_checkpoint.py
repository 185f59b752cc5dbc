"""The same weights and spec come out of every format; a folder that does not fit its description is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from kvops.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from kvops.models.checkpoint import open_checkpoint
from kvops.models.gguf_header import read_gguf_header
from kvops.models.spec import RopeScaling
from kvops.models.store import resolve
from tests.models.gguf_files import gguf_name, to_gguf
from tests.tiny import make_tiny_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def change_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def loaded(path: Path) -> dict[str, np.ndarray]:
    return dict(open_checkpoint(path).tensors())


def shard(folder: Path) -> None:
    """Split model.safetensors into two files with an index, as transformers saves large models."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
def test_folder_and_gguf_give_the_same_model(family: str, tie: bool, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / family, family, tie=tie)
    original = load_file(folder / "model.safetensors")
    from_folder, from_gguf = (
        open_checkpoint(folder),
        open_checkpoint(to_gguf(folder, tmp_path / "m.gguf")),
    )
    for checkpoint in (from_folder, from_gguf):
        tensors = dict(checkpoint.tensors())
        assert set(tensors) == set(original)
        for name, tensor in tensors.items():
            assert tensor.dtype == np.float32
            np.testing.assert_array_equal(tensor, original[name], err_msg=name)
    assert from_folder.parameters == from_gguf.parameters == sum(t.size for t in original.values())
    spec = from_folder.spec
    assert (spec.family, spec.tie_embeddings) == (family, tie)
    assert (spec.attention_bias, spec.qk_norm) == (family == "qwen2", family == "qwen3")
    assert (spec.n_layers, spec.n_heads, spec.n_kv_heads, spec.head_dim) == (2, 4, 2, 16)
    changed = {"family", "rms_norm_eps"}
    ours, theirs = (
        {f: getattr(c.spec, f) for f in spec.__struct_fields__} for c in (from_folder, from_gguf)
    )
    assert {f for f in ours if ours[f] != theirs[f]} <= changed
    assert from_gguf.spec.rms_norm_eps == pytest.approx(spec.rms_norm_eps, rel=1e-6)


def test_interleaved_rows_differ_from_the_rotate_half_layout(tmp_path: Path) -> None:
    """Guards the test above: without undoing the permutation it would not pass."""
    folder = make_tiny_model(tmp_path / "m")
    reader = gguf.GGUFReader(to_gguf(folder, tmp_path / "m.gguf"))
    stored = next(t.data for t in reader.tensors if t.name == "blk.0.attn_q.weight")
    assert not np.array_equal(
        stored, load_file(folder / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    )


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1], ids=lambda kind: kind.name
)
def test_quantized_gguf_is_close(kind: Kind, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    original, tensors = (
        load_file(folder / "model.safetensors"),
        loaded(to_gguf(folder, tmp_path / "m.gguf", kind)),
    )
    for name, tensor in tensors.items():
        spread = float(original[name].std()) + 1e-3
        assert float(np.abs(tensor - original[name]).mean()) < 0.1 * spread, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    halves = {
        n: torch.from_numpy(t).to(dtype) for n, t in load_file(folder / "model.safetensors").items()
    }
    save_torch_file(halves, folder / "model.safetensors")
    for name, tensor in loaded(folder).items():
        np.testing.assert_array_equal(tensor, halves[name].float().numpy(), err_msg=name)


def test_shards_give_the_same_tensors(tmp_path: Path) -> None:
    whole, parts = make_tiny_model(tmp_path / "whole"), make_tiny_model(tmp_path / "parts")
    shard(parts)
    expected, found = loaded(whole), loaded(parts)
    assert list(expected) == list(found)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "model.bin",
        ".hidden.safetensors",
        "",
    ],
)
def test_an_index_cannot_point_elsewhere(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    save_file(load_file(folder / "model.safetensors"), tmp_path / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"model.norm.weight": name}})
    )
    with pytest.raises(ModelCorrupt, match="no plain safetensors file name"):
        open_checkpoint(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelCorrupt, match=r"model-00002-of-00002\.safetensors, which is missing"):
        open_checkpoint(folder)


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.7.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
    tensors["model.norm.weight"] = np.zeros(63, np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelCorrupt) as raised:
        open_checkpoint(folder)
    message = raised.value.message
    assert "missing: model.layers.1.mlp.up_proj.weight" in message
    assert "unexpected: model.layers.7.mlp.up_proj.weight" in message
    assert "model.norm.weight is [63], not [64]" in message


def test_a_gguf_without_a_tensor_is_refused_under_its_hf_name(
    tiny_model: Path, tmp_path: Path
) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    with pytest.raises(ModelCorrupt, match=f"missing: {name}"):
        open_checkpoint(to_gguf(tiny_model, tmp_path / "m.gguf", drop=gguf_name(name)))


def test_a_tied_copy_of_the_head_and_old_rotary_buffers_are_ignored(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", tie=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    save_file(tensors, folder / "model.safetensors")
    assert "lm_head.weight" not in loaded(folder)


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_scaling": None}, 10_000.0, None),
        (
            {"rope_scaling": LLAMA3, "rope_theta": 5e5},
            5e5,
            RopeScaling("llama3", 8.0, 1.0, 4.0, 128),
        ),
        (
            {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
            5e5,
            RopeScaling("llama3", 8.0, 1.0, 4.0, 128),
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 10_000.0, RopeScaling("linear", 2.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
    ],
)
def test_both_forms_of_rope_settings(
    changes: dict[str, Any], theta: float, scaling: RopeScaling | None, tmp_path: Path
) -> None:
    spec = open_checkpoint(change_config(make_tiny_model(tmp_path / "m"), **changes)).spec
    assert (spec.rope_theta, spec.rope_scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "yarn"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"use_sliding_window": True}, "sliding window"),
        ({"head_dim": 15}, "head dimension of 15"),
    ],
)
def test_an_unsupported_variant_is_named(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupported, match=named):
        open_checkpoint(change_config(make_tiny_model(tmp_path / "m"), **changes))


@pytest.mark.parametrize("value", [None, -1, 0, 2**70, 1.5, "2", True, [2]], ids=repr)
def test_a_bad_size_is_named_with_its_bound(value: object, tmp_path: Path) -> None:
    with pytest.raises(
        ModelCorrupt, match=r"num_hidden_layers is .* not a whole number from 1 to 1024"
    ):
        open_checkpoint(change_config(make_tiny_model(tmp_path / "m"), num_hidden_layers=value))


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "list", "cut", "bytes", "deep"],
)
def test_a_config_that_is_no_object_is_refused(content: bytes, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelCorrupt, match=r"config\.json"):
        open_checkpoint(folder)


def test_mistral_keeps_its_sliding_window(tmp_path: Path) -> None:
    folder = change_config(make_tiny_model(tmp_path / "m", "mistral"), sliding_window=128)
    assert open_checkpoint(folder).spec.sliding_window == 128


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"general.architecture": "gpt2"}, "gpt2"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"split.count": 3}, "split"),
        ({"llama.rope.dimension_count": 8}, "part of the head"),
    ],
)
def test_an_unsupported_gguf_is_named(
    extra: dict[str, Any], named: str, tiny_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnsupported, match=named):
        open_checkpoint(to_gguf(tiny_model, tmp_path / "m.gguf", extra=extra))


def test_linear_rope_scaling_of_a_gguf(tiny_model: Path, tmp_path: Path) -> None:
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert open_checkpoint(
        to_gguf(tiny_model, tmp_path / "m.gguf", extra=extra)
    ).spec.rope_scaling == RopeScaling("linear", 4.0)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_a_gguf(factor: float, tmp_path: Path) -> None:
    """The factors as transformers computes them from the config, written as llama.cpp's converter does."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    folder = make_tiny_model(tmp_path / "m", head_dim=64)
    scaling = LLAMA3 | {
        "factor": factor,
        "original_max_position_embeddings": 8192,
        "rope_theta": 5e5,
    }
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, rope_parameters=scaling
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    plain = 1 / 5e5 ** (torch.arange(0, 64, 2) / 64)
    change_config(folder, rope_theta=5e5)
    path = to_gguf(
        folder, tmp_path / "m.gguf", rope_factors=(plain / scaled).numpy().astype(np.float32)
    )
    assert open_checkpoint(path).spec.rope_scaling == RopeScaling("llama3", factor)
    wrong = to_gguf(
        folder, tmp_path / "w.gguf", rope_factors=np.linspace(1, 8, 32, dtype=np.float32)
    )
    with pytest.raises(ModelUnsupported, match="rope_freqs"):
        open_checkpoint(wrong)


def test_code_in_a_model_folder_is_never_run(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    change_config(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    marker = tmp_path / "ran"
    for name in ("modeling_evil.py", "json.py", "numpy.py", "tokenizers.py", "sitecustomize.py"):
        (folder / name).write_text(f"open({str(marker)!r}, 'w').close()")
    program = (
        "import sys; from pathlib import Path; from kvops.models.store import open_model, resolve;"
        "print(open_model(resolve(sys.argv[1]).path)); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "llama" in done.stdout
    assert not marker.exists()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        open_checkpoint(tmp_path / "missing")


@pytest.mark.model
def test_default_model_equals_transformers_own_reading(
    default_model_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    monkeypatch.setenv("KVOPS_HOME", str(default_model_home))
    path = resolve("smollm2-135m").path
    processor = LlamaTensorProcessor({"num_attention_heads": 9, "num_key_value_heads": 3})
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    tensors = loaded(path)
    layers = ["q_proj", "k_proj", "v_proj", "o_proj"]
    names = [f"model.layers.17.self_attn.{part}.weight" for part in layers]
    names += [
        "model.layers.3.mlp.down_proj.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
    ]
    for name in names:
        theirs = stored[gguf_name(name)]
        values = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
        expected = processor.process(weights=values, name=gguf_name(name)).weights
        np.testing.assert_array_equal(tensors[name], expected, err_msg=name)
    assert sum(tensor.size for tensor in tensors.values()) == 134_515_008
    assert len(read_gguf_header(path).tensors) == len(tensors) == 272
