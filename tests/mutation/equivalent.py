"""The mutants that no test can notice, and why: `Mutant.key` and the reason."""

EQUIVALENT = {
    'metacount/cli/__init__.py  done.code or 0 -> 0   in: return _write("") or int(done.code or 0)': "argparse ends by itself with 0 alone",
    'metacount/cli/__init__.py  done.code or 0 -> done.code   in: return _write("") or int(done.code or 0)': "argparse ends by itself with 0 alone",
    "metacount/cli/options.py  40 -> 41   in: value = float(text[:40])": "a bound on a text",
    "metacount/formulas/pieces.py  'ARPSN' -> 'ARPSN?'   in: ANY_MIXER, ANY_FFN = \"ARPSN\", \"FEBN\"": "no kind of layer has a question mark for its letter",
    "metacount/formulas/pieces.py  'FEBN' -> 'FEBN?'   in: ANY_MIXER, ANY_FFN = \"ARPSN\", \"FEBN\"": "no kind of layer has a question mark for its letter",
    "metacount/formulas/pieces.py  'I' -> 'I?'   in: return 0 if index is None else lettered_layers(n_layers, index.pattern, \"I\")": "no other letter of the pattern is a question mark",
    "metacount/formulas/pieces.py  'W' -> 'W?'   in: second = 0 if part.second is None else lettered_layers(n, part.second_pattern, \"W\")": "no letter of the pattern is a question mark",
    "metacount/formulas/pieces.py  'x' -> 'x?'   in: return lettered_layers(n_layers, having, \"x\")": "no layer has a question mark",
    "metacount/formulas/mixers/state_space.py  1 -> 0   in: most = (int(seq_len.max()) - 1).bit_length()": "a round more reaches no position",
    "metacount/formulas/mixers/state_space.py  int(seq_len.max()) - 1 -> int(seq_len.max())   in: most = (int(seq_len.max()) - 1).bit_length()": "a round more reaches no position",
    "metacount/formulas/mixers/state_space.py  int(seq_len.max()) - 1 -> int(seq_len.max()) + 1   in: most = (int(seq_len.max()) - 1).bit_length()": "a round more reaches no position",
    "metacount/formulas/ranks.py  sizes[0] < rank.copies -> sizes[0] <= rank.copies   in: axis = int(sizes[0] < rank.copies and sizes[1] % rank.copies == 0)": "as many experts as copies are cut alike on either axis",
    "metacount/formulas/sublayers.py  ('position', 'attention') -> ('position',)   in: return by_role(terms, lambda term: term.flops(run), (\"position\", \"attention\"))": "an attention has terms of its own role",
    "metacount/measure/ours.py  2 ** 22 // sees.n_keys -> 2 ** 22   in: rows = max(1, 2**22 // sees.n_keys)": "how many rows are laid out at once",
    'metacount/formulas/mtp.py  0 -> 1   in: spec, run, model.kept_pairs(spec, run["seq_len"], 0)': "a prefix is asked of prefix decoders alone",
    'metacount/formulas/mtp.py  0 -> 2   in: spec, run, model.kept_pairs(spec, run["seq_len"], 0)': "a prefix is asked of prefix decoders alone",
}
