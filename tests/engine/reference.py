"""HF transformers as the reference; imported only where it is used, for that takes many seconds."""

from __future__ import annotations

from pathlib import Path

import torch


def reference_model(folder: Path) -> torch.nn.Module:
    """In float32, whatever the files hold."""
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model
