"""Files, text, settings and the list of shipped recipes: they import no other part of Polyphony."""
