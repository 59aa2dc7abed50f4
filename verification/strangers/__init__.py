"""Connections of strangers to every port of a real cluster, and what its clients and its memory notice of them."""
