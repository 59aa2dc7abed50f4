"""Certificates for development."""
