#!/usr/bin/env bash
# A tokenizer.json may cut every text off, without a word.
#
# One would guess that encoding a text returns all of its tokens, and that limits are the
# caller's. Truncation and padding that were enabled once are stored in the file, as in those of
# many sentence encoders: whoever loads it gets no more tokens than that, and no sign of it but
# `overflowing`.
#
# Seen with tokenizers 0.23.3.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q tokenizers==0.23.3
venv/bin/python - <<'PYTHON'
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: index for index, letter in enumerate(letters)}
first = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
first.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
first.enable_truncation(4)
loaded = Tokenizer.from_str(first.to_str())
found = loaded.encode("abcdefgh")
print("tokenizers", tokenizers.__version__, "eight letters:", found.tokens)
assert len(found.ids) == 4
loaded.no_truncation()
assert len(loaded.encode("abcdefgh").ids) == 8
PYTHON
