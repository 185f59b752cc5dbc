"""kvops: plan, start, gate, watch, stress and roll back LLM inference nodes."""

__version__ = "0.1.0"
