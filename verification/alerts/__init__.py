"""A real Prometheus over a real cluster: each planted fault raises its alert in time, and a quiet period raises none."""
