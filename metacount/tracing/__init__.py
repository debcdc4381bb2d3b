"""Reads closed forms off the code that would run, ours or transformers'.

1. **Run** (`sources`, `symbols`). The model is built with `torch.SymInt`s for its sizes and run
   under `FakeTensorMode`. `numel()` and the FLOP counter then give SymPy expressions. Each
   comparison that the code makes ("is S less than the window?") is noted: what it answered is a
   condition of the form (`domain`).
2. **Solve** (`forms`, `layers`). Where code turns a size into a number (a list of experts, the
   slopes of ALiBi), the model is read at several numbers and a polynomial is put through them. How
   many layers are of which kind follows from the numbers of the layers that differ.
3. **Confirm** (`forms.OtherSizes`). The form is measured against real builds at other sizes inside
   its domain. A size that proves not to be free becomes a condition; others are named.

`forms.Tracer` does the three in turn and gives a `layers.CodeForm`.
"""
