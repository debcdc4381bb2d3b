"""The mutants that no test can notice, and why: `Mutant.key` and the reason."""

EQUIVALENT = {
    "metacount/commands/check.py  40 -> 41   in: seconds = float(text[:40])": "a bound on a text",
    "metacount/measure/ours/flops.py  2 ** 22 // sees.n_keys -> 2 ** 22   in: rows = max(1, 2**22 // sees.n_keys)": "how many rows are laid out at once",
    'metacount/check/places.py  kind == 2 -> kind != 2   in: elif kind == 2 and name != "prefix_len":': "another of kinds that are equally likely",
    'metacount/check/places.py  2 -> 3   in: elif kind == 2 and name != "prefix_len":': "another of kinds that are equally likely",
    "metacount/formulas/block.py  'AP' -> 'AP?'   in: if mixer in \"AP\":": "no mixer's letter is a question mark",
    "metacount/formulas/block.py  ('position', 'attention') -> ('position',)   in: return by_role(terms, lambda term: term.flops(run), (\"position\", \"attention\"))": "an attention has terms of its own role",
    'metacount/cli.py  done.code or 0 -> 0   in: return _write("") or int(done.code or 0)': "argparse ends by itself with 0 alone",
    'metacount/cli.py  done.code or 0 -> done.code   in: return _write("") or int(done.code or 0)': "argparse ends by itself with 0 alone",
    "metacount/formulas/around.py  found += altup.altup_weights(d_model, stack.altup.n_inputs, scaled=scaled, **nor -> found = altup.altup_weights(d_model, stack.altup.n_inputs, scaled=scaled, **norm   in: found += altup.altup_weights(d_model, stack.altup.n_inputs, scaled=scaled, **norms)": "nothing is found before",
    "metacount/formulas/around.py  found += altup.copy_weights(spec.d_model, stack.altup.n_inputs) -> found = altup.copy_weights(spec.d_model, stack.altup.n_inputs)   in: found += altup.copy_weights(spec.d_model, stack.altup.n_inputs)": "nothing is found before",
    "metacount/formulas/indexed.py  'I' -> 'I?'   in: return 0 if index is None else attention.lettered_layers(n_layers, index.pattern, \"I\")": "no other letter of the pattern is a question mark",
    "metacount/formulas/layers.py  'ARPSN' -> 'ARPSN?'   in: ANY_MIXER, ANY_FFN = \"ARPSN\", \"FEBN\"": "no kind of layer has a question mark for its letter",
    "metacount/formulas/layers.py  'FEBN' -> 'FEBN?'   in: ANY_MIXER, ANY_FFN = \"ARPSN\", \"FEBN\"": "no kind of layer has a question mark for its letter",
    "metacount/formulas/layers.py  'x' -> 'x?'   in: return lettered_layers(n_layers, having, \"x\")": "no layer has a question mark",
    "metacount/formulas/mixers.py  1 -> 0   in: batch, 1, linear_chunk_size=part.chunk_size, continued=True": "a step has no pairs, of however many tokens",
    "metacount/formulas/mixers.py  1 -> 2   in: batch, 1, linear_chunk_size=part.chunk_size, continued=True": "a step has no pairs, of however many tokens",
    "metacount/formulas/mtp.py  0 -> 1   in: pairs = runs.kept_pairs(spec, seq_len, 0)": "a prefix is asked of prefix decoders alone",
    "metacount/formulas/mtp.py  0 -> 2   in: pairs = runs.kept_pairs(spec, seq_len, 0)": "a prefix is asked of prefix decoders alone",
    "metacount/formulas/mtp.py  0 -> 1   in: run = runs.decode_run(spec, batch_size=batch_size, kv_len=kv_len, source_len=0)": "no model with prediction modules has an encoder",
    "metacount/formulas/mtp.py  0 -> 2   in: run = runs.decode_run(spec, batch_size=batch_size, kv_len=kv_len, source_len=0)": "no model with prediction modules has an encoder",
}
