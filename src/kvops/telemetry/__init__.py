"""What is known of a node, and how it is fetched: the snapshot, the clients, the history."""
