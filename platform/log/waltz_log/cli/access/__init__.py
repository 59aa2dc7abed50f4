"""The rules of access."""
