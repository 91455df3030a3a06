"""Studies: recipe → plan of jobs → results → scores."""
