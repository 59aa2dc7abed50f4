"""From the data of transactions to Arrow columns, in the worker that reads it; a transaction decodes completely or not at all, with a reason."""
