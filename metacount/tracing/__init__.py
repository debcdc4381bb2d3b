"""Closed forms read off the code that would run: modules built and run with symbols for sizes."""
