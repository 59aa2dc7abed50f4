"""Scans the ports of a secure cluster with sslyze and testssl.sh, and judges the reports."""
