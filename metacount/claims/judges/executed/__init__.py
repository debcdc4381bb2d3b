"""Judges that run the reference modules, with small sizes in float64."""
