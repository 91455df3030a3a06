"""Values of α, temperature and step size for one method, tried on validation images."""

from polyphony.sweep.run import Sweep, SweepOutcome, run_sweep

__all__ = ["Sweep", "SweepOutcome", "run_sweep"]
