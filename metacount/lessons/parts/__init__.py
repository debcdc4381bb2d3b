"""What each lesson computes: VALUES by name, its own model, and what a model must have for it."""
