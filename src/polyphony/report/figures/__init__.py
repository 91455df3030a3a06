"""The figures: each a function of a run that gives charts and tables, or says what is missing for them."""
