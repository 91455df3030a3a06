"""Files, text and settings: helpers that know nothing else of Polyphony."""
