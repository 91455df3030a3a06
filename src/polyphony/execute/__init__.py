"""Where jobs run: here, in several processes, on a cluster."""
