"""Traces of appends. `tracer` is the port. `spans`, `export` and `application` import OpenTelemetry, and are loaded only where tracing is enabled."""
