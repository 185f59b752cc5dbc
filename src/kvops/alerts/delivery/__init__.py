"""Ways to a receiver. Whatever goes wrong is said without the URL, which holds a token."""
