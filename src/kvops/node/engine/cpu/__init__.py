"""The decoder on a CPU: one compiled function computes a whole step, on every thread at once."""
