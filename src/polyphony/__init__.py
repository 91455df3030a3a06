"""Polyphony."""
