"""Makes golden/tokenizers.json: the ids that `tokenizers` gives for a few texts, by each tokenizer of ../shared.

Run: python tests/parity/golden/make_tokenizers.py FOLDER    (the unpacked archive `tokenizers`)
"""

import json
import sys
from pathlib import Path

import tokenizers

TEXTS = [
    "Hello world",
    " Hello  world\n",
    "The quick brown fox doesn't jump over 13 lazy dogs, it's 3.14159 metres away — isn't it?",
    "def f(x: int) -> str:\n\treturn f'{x:>8}'  # naïve\n\n\nclass A: pass\r\n",
    "Ελληνικά Русский עברית العربية हिन्दी ไทย 日本語 한국어 中文，。",
    "e\u0301 a\u0323\u0307 \u1100\u1161\u11a8 \u212b ﬁ ① ½",
    "👨‍👩‍👧‍👦🏳️‍🌈🇪🇸👍🏽",
    "\x00\x01\r\u00a0\u2003\u2028\u3000\ufeff\u200b\ue000\U0010ffff",
    "a" * 70 + " " * 33 + "=" * 50,
    "<s>x</s> <|endoftext|><|im_start|>user\n<|im_end|> <|eot_id|><unk>",
]


def golden(folder: Path) -> dict[str, list[list[int]]]:
    found = {}
    for file in sorted(folder.glob("*/tokenizer.json")):
        library = tokenizers.Tokenizer.from_file(str(file))
        library.no_truncation()
        library.no_padding()
        found[file.parent.name] = [library.encode(text).ids for text in TEXTS]
    return found


if __name__ == "__main__":
    content = {"texts": TEXTS, "ids": golden(Path(sys.argv[1]))}
    lines = ",\n".join(
        f'  "{name}": [\n' + ",\n".join(f"   {json.dumps(row)}" for row in rows) + "\n  ]"
        for name, rows in content["ids"].items()  # type: ignore[attr-defined]
    )
    text = f'{{\n "texts": {json.dumps(TEXTS)},\n "ids": {{\n{lines}\n }}\n}}\n'
    Path(__file__).with_name("tokenizers.json").write_text(text)
