"""How results are shown: text for people. No view computes a count."""
