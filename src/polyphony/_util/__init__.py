"""Files, text and limits: helpers that know nothing else of Polyphony."""
