"""One client an engine kind; each turns what the engine exposes into a `NodeSnapshot`."""
