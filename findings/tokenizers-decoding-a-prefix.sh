#!/usr/bin/env bash
# The text of the first tokens is no prefix of the text of all tokens.
#
# One would guess that a text can be shown as its tokens come: decode the new one and append it. A
# byte-level token may be a part of a character: alone it decodes to U+FFFD, and together with the
# next one to the character, so that texts that are appended have two of them for one letter. A
# stream has to hold back text that ends in U+FFFD, and to decode the tokens before again.
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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
ids = tokenizer.encode("n\u00e9").ids
texts = [tokenizer.decode(ids[:count]) for count in range(1, len(ids) + 1)]
appended = "".join(tokenizer.decode([each]) for each in ids)
print("tokenizers", tokenizers.__version__, "by number of tokens", texts)
print("appended", ascii(appended))
assert texts[-1] == "n\u00e9"
assert not texts[-1].startswith(texts[-2])
assert appended == "n\ufffd\ufffd"
PYTHON
