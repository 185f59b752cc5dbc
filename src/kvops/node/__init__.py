"""The node: a daemon that speaks HTTP and an engine process that computes."""
