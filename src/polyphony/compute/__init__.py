"""Where tensors live and who computes them: devices, several processes, random streams."""
