"""The training loop, its optimisers and schedules, and predictions of a trained model."""
