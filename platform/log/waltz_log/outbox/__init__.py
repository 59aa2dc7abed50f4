"""The durable outbox of a service: accepted on the local disk, forwarded to the log exactly once. Public names are in `waltz_log.client`."""
