"""Connections of strangers to every port of a real cluster, and their effect on its clients and its memory."""
