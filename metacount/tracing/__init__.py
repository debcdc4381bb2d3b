"""Reads closed forms off the code that would run, ours or transformers'.

::

    run/      build with symbols --> run on meta --> expressions + what the code asked of sizes
                                                          |
    solve/    sizes that became numbers, how many layers of a kind, lengths that take no symbol
                                                          |
    confirm/  build at other sizes with plain numbers --> the same figure?  --> the form, its domain

1. **Run.** The model is built with `torch.SymInt`s for its sizes and run under `FakeTensorMode`.
   `numel()` and the FLOP counter then give SymPy expressions. Each comparison that the code makes
   ("is S less than the window?") is noted: what it answered is a condition of the form.
2. **Solve.** Where code turns a size into a number (a list of experts, the slopes of ALiBi), the
   model is read at several numbers and a polynomial is put through them. How many layers are of
   which kind follows from the numbers of the layers that differ.
3. **Confirm.** The form is measured against real builds at other sizes inside its domain. A size
   that proves not to be free becomes a condition; one that cannot be changed is named.

`forms.Tracer` does the three in turn and gives a `layers.CodeForm`.
"""
