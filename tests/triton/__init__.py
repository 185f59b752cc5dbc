"""The GPU kernels against the oracle, in Triton's interpreter: `scripts/test-triton`. Elsewhere they are skipped."""

import importlib.util
import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton's interpreter: run scripts/test-triton", allow_module_level=True)
