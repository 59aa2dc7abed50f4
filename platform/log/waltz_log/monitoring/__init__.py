"""What operators' tools read of a serving process over HTTP: whether it lives, whether it is ready, and its metrics.

All of it is made from the typed statistics (`waltz_log.core.status`) at each request. Nothing here is called by an append.
"""
