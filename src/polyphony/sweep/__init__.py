"""Values of α, temperature and step size for one method, tried on validation images."""
