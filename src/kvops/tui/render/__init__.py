"""From a view to lines of text: pure functions, one file a panel."""
