"""What the pages of lessons are made of: a file a topic computes every value that its page names.

`VALUES` holds them by name, constants or functions of `Here`; `fits` tells whether the lesson is
true of a model, and `NEEDS` and `SUCH_AS` say what it needs instead.
"""
