"""The ports of a secure cluster as sslyze and testssl.sh see them, and what is wrong with that."""
