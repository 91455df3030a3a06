"""The figures: functions of a run that return charts and tables, or say what is missing."""
