"""Sweeps: compare values of α, temperature and step size of one method on validation images."""
