"""Everything that is only for NVIDIA GPUs. Nothing here is imported on a CPU, and Triton only where it is needed."""
