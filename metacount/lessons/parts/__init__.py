"""What each lesson computes: VALUES by name, the model it takes when none is named, what it needs."""
