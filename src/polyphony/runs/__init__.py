"""The run folder: its stages, tables and saved predictions."""
