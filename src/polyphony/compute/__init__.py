"""Devices, training in several processes, and random generators."""
