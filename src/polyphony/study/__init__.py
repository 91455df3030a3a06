"""What is to be done: recipe → plan → results → scores."""
