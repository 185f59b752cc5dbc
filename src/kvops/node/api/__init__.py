"""The HTTP routes of the data plane and the control plane."""
