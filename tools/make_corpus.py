#!/usr/bin/env python3
# Writes a mixed corpus for comparing tokenizers: JSON lines {"text": ..., "special": true|false}, the same bytes for the same
# seed and size. Texts are made here: sentences, code, numbers, words and runs of many scripts, white space, spellings of added
# tokens and their fragments, random code points. Called by tools/compare_tokenizer.py and by hand.
# usage: make_corpus.py [--bytes 5500000] [--seed 1] > corpus.jsonl
import argparse
import json
import random
import sys

SENTENCES = [
    'The kettle clicked off before anyone had found the second cup.',
    "She's sure they'll say it isn't theirs; we've heard that, and I'd rather not.",
    'Water boils at 100 °C (212 °F) at sea level, but at 3,500 m it boils near 88 °C.',
    'Der Zug nach Köln fährt um 7:45 Uhr von Gleis 12 ab, sofern die Strecke frei ist.',
    "L'été dernier, j'ai planté trois cerisiers près de la clôture ; deux ont survécu.",
    'El niño preguntó: «¿Cuántos años tiene el árbol?», y nadie supo contestar.',
    'Młynarz zmełł żyto, a potem sprzedał mąkę na targu w sąsiedniej wsi.',
    'Лодка медленно плыла по реке, и никто не торопился домой.',
    'Ο μικρός κήπος πίσω από το σπίτι έχει τρεις ελιές και ένα πηγάδι.',
    '今天早上我在公园里看见一只白色的猫，它坐在长椅上晒太阳。',
    '昨日は雨が降ったので、図書館でコーヒーを飲みながら本を読みました。',
    '우리 할머니는 매일 아침 마당에서 고양이 세 마리에게 밥을 주신다.',
    'القطار يصل إلى المحطة في الساعة ٧:٣٠ صباحًا كل يوم.',
    'הכלב הקטן רץ אחרי הכדור ולא הצליח לתפוס אותו.',
    'नदी के किनारे एक पुराना पेड़ है जिसकी छाया में लोग बैठते हैं।',
    'แมวสีดำนอนหลับอยู่บนหลังคาบ้านตลอดทั้งวัน',
    'Bà tôi trồng một vườn rau nhỏ phía sau nhà và bán rau ở chợ.',
    'மழை பெய்த பிறகு தெருவில் குழந்தைகள் விளையாடினார்கள்.',
    'Kuş sesleri sabahın erken saatlerinde İstanbul’un ara sokaklarını doldurur.',
    'The answer is yes 👍🏽, the family 👨‍👩‍👧‍👦 agreed, and the flag 🇳🇵 went up — finally…',
]
CODE = [
    'for (int row_idx = 0; row_idx < num_rows; ++row_idx) {\n  sum += rows[row_idx] * 0.5f;\n}\n',
    'def area(width, height=2.0):\n    """Area of a rectangle."""\n    return width * height  # square metres\n',
    '#include <vector>\nstd::vector<std::pair<int, char>> pairs{{1, \'a\'}, {2, \'\\n\'}};\n',
    'SELECT name, COUNT(*) AS num FROM visits WHERE day >= "2031-04-01" GROUP BY name;\r\n',
    '<div class="card"><a href="https://example.org/a?b=1&c=%20">link</a></div>\n\n',
    '{"id": 17, "tags": ["x", "y"], "ratio": 1.25e-3, "ok": null}\n',
    'if [ -z "$HOME" ]; then\n\techo "no home" >&2\n\texit 1\nfi\n\n\n',
    'let total = items.iter().filter(|&i| i % 3 != 0).map(|i| i << 2).sum::<u64>();\n',
    '| left | right |\n|:-----|------:|\n| 1    | **2** |\n\n---\n\n* item `code`\n   1. deeper\n',
    '\\frac{\\partial u}{\\partial t} = \\alpha \\nabla^{2} u + \\sum_{i=0}^{n} x_{i}\n',
]
RANGES = [  # first and last code point of stretches that scripts, marks, digits and symbols lie in
    (0x20, 0x7e), (0xa0, 0xff), (0x100, 0x24f), (0x250, 0x2af), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x52f),
    (0x530, 0x58f), (0x590, 0x5ff), (0x600, 0x6ff), (0x700, 0x74f), (0x780, 0x7bf), (0x900, 0x97f), (0x980, 0x9ff),
    (0xb80, 0xbff), (0xe00, 0xe7f), (0xf00, 0xfff), (0x1000, 0x109f), (0x10a0, 0x10ff), (0x1100, 0x11ff),
    (0x1200, 0x137f), (0x13a0, 0x13ff), (0x1780, 0x17ff), (0x1e00, 0x1eff), (0x2000, 0x206f), (0x2070, 0x209f),
    (0x20a0, 0x20cf), (0x2100, 0x218f), (0x2190, 0x22ff), (0x2460, 0x24ff), (0x2500, 0x25ff), (0x2600, 0x27bf),
    (0x2800, 0x28ff), (0x2e80, 0x2fdf), (0x3000, 0x303f), (0x3040, 0x30ff), (0x3100, 0x312f), (0x3200, 0x33ff),
    (0x3400, 0x4dbf), (0x4e00, 0x9fff), (0xa000, 0xa4cf), (0xac00, 0xd7a3), (0xe000, 0xe0ff), (0xf900, 0xfaff),
    (0xfe00, 0xfe0f), (0xfe70, 0xfeff), (0xff00, 0xffef), (0xfff0, 0xffff), (0x10280, 0x1034f), (0x10400, 0x1044f),
    (0x10d40, 0x10d8f), (0x11f00, 0x11f5f), (0x12000, 0x123ff), (0x13000, 0x1342f), (0x1d100, 0x1d1ff),
    (0x1d400, 0x1d7ff), (0x1e4d0, 0x1e4ff), (0x1e900, 0x1e95f), (0x1f1e6, 0x1f1ff), (0x1f300, 0x1f6ff),
    (0x1f900, 0x1faff), (0x20000, 0x203ff), (0x31350, 0x323af), (0xe0000, 0xe01ef),
]
SPACES = ' \t\n\r\v\f\u00a0\u0085\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u200b\ufeff'
ADDED = ['<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>', '<｜User｜>', '<｜Assistant｜>', '<｜System｜>', '<think>', '</think>',
         '｜DSML｜', '<｜deepseek_image｜>', '<｜▁pad▁｜>', '<|EOT|>', '<｜place▁holder▁no▁0｜>', '<dsml:', '</dsml:']


def code_point(rng, first, last):
    """A random character of a range; surrogates are no characters."""
    value = rng.randint(first, last)
    return 'x' if 0xd800 <= value < 0xe000 else chr(value)


def sentences(rng):
    return ' '.join(rng.choice(SENTENCES) for _ in range(rng.randint(3, 12))) + rng.choice(['', '\n', '\n\n', '  \n'])


def code(rng):
    return ''.join(rng.choice(CODE) for _ in range(rng.randint(2, 8)))


def numbers(rng):
    parts = [str(rng.randint(0, 10 ** rng.randint(1, 20))) + rng.choice(['', '.', ',', ' ', 'km', '%', '٣', '½', '²', '\n'])
             for _ in range(rng.randint(10, 80))]
    return ''.join(parts)


def script_words(rng):
    first, last = rng.choice(RANGES)
    words = [''.join(code_point(rng, first, last) for _ in range(rng.randint(1, 9))) for _ in range(rng.randint(10, 60))]
    return rng.choice([' ', ', ', '\n', '-', '123', ' "', "'"]).join(words)


def script_mix(rng):
    ranges = rng.sample(RANGES, 6)
    return ''.join(code_point(rng, *rng.choice(ranges)) for _ in range(rng.randint(40, 300)))


def white_space(rng):
    parts = [''.join(rng.choice(SPACES) for _ in range(rng.randint(1, 6))) + rng.choice(['', 'a', '1', '.', '的', 'é', '\x00'])
             for _ in range(rng.randint(10, 80))]
    return ''.join(parts)


def letters(rng):
    """Invented words: few are in the vocabulary, so merging has work to do."""
    def word():
        made = ''.join(rng.choice('eeetaoinshrdlucmfwypvbgkjqxz') for _ in range(rng.randint(1, 14)))
        return rng.choice([made, made, made.capitalize(), made.upper()])
    return ' '.join(word() for _ in range(rng.randint(20, 150)))


def added_spellings(rng):
    parts = []
    for _ in range(rng.randint(5, 40)):
        spelling = rng.choice(ADDED)
        cut = rng.randint(1, len(spelling))
        parts.append(rng.choice([spelling, spelling, spelling[:cut], spelling[cut:], rng.choice(SENTENCES), ' ']))
    return ''.join(parts)


def any_code_points(rng):
    return ''.join(code_point(rng, 0, 0x10ffff) for _ in range(rng.randint(20, 200)))


def long_run(rng):
    unit = rng.choice(['a', ' ', '\n', '=', '的', '0', 'ab', '\x00', '🙂', 'é', '\u0301', '--', ' \n'])
    return unit * rng.randint(200, 3000)


MAKERS = [sentences, sentences, sentences, code, code, numbers, script_words, script_words, script_mix, white_space, letters,
          letters, added_spellings, any_code_points, long_run]


def documents(seed, num_bytes):
    """Requests until their texts have `num_bytes` of UTF-8."""
    rng = random.Random(seed)
    total_bytes = 0
    while total_bytes < num_bytes:
        text = ''.join(rng.choice(MAKERS)(rng) for _ in range(rng.randint(1, 8)))
        total_bytes += len(text.encode())
        yield {'text': text, 'special': rng.random() < 0.5}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--bytes', type=int, default=5_500_000)
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    for document in documents(options.seed, options.bytes):
        sys.stdout.write(json.dumps(document) + '\n')


if __name__ == '__main__':
    main()
