"""Generated English sentences, stories and code, from words.py. tasks.py and tools.py use the sentences; data.py
mixes the stories and the code for training. Every function takes a random.Random."""

import chat
import words

CODE_VERBS = (
    'get set find create delete update send list open close check add remove move read write start stop print'.split()
)


ALPHABETS = [
    'abcdefghijklmnopqrstuvwxyz',
    'ABCDEFGHIJKLMNOPQRSTUVWXYZ',
    '0123456789',
    'abcdefghijklmnopqrstuvwxyz0123456789',
    'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789',
    '0123456789abcdef',
]


def identifier(rng):
    parts = []
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.3:
            parts.append(rng.choice([str, str.upper, str.title])(rng.choice(words.NOUNS + words.ADJECTIVES)))
        else:
            alphabet = rng.choice(ALPHABETS)
            parts.append(''.join(rng.choice(alphabet) for _ in range(rng.randint(2, 9))))
    return rng.choice(['-', '_', '.', '/', ':', '', '@', '#']).join(parts)


def noun_phrase(rng):
    if rng.random() < 0.25:
        return rng.choice(words.NAMES)
    return (
        f'the {rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}'
        if rng.random() < 0.6
        else f'the {rng.choice(words.NOUNS)}'
    )


def sentence(rng):
    subject, other, verb = noun_phrase(rng), noun_phrase(rng), rng.choice(words.VERBS)
    place, when = rng.choice(words.PLACES), rng.choice(words.TIMES)
    text = rng.choice(
        [
            f'{subject} {verb} {other} {place}',
            f'{when}, {subject} {verb} {other}',
            f'{subject} {verb} {other} {when}',
            f'{place}, {subject} {verb} {other}',
            f'{subject} is {rng.choice(words.SENSES)} and {rng.choice(words.SENSES)} {when}',
            f'{subject} {verb} {other} because {noun_phrase(rng)} is {rng.choice(words.SENSES)}',
            f'when {subject} {verb} {other}, {noun_phrase(rng)} {rng.choice(words.VERBS)} {noun_phrase(rng)}',
        ]
    )
    return text[0].upper() + text[1:] + '.'


def about(rng, topic):
    sense, other = rng.choice(words.SENSES), rng.choice(words.SENSES)
    return rng.choice(
        [
            f'The {topic} is {sense} and {other} {rng.choice(words.TIMES)}.',
            f'{rng.choice(words.NAMES)} {rng.choice(words.VERBS)} the {topic} {rng.choice(words.PLACES)}.',
            f'{rng.choice(words.TIMES).capitalize()}, the {topic} is {sense}.',
            f'The {sense} {topic} {rng.choice(words.VERBS)} the {rng.choice(words.NOUNS)}.',
        ]
    )


def story(rng):
    """Plain text: a paragraph that keeps to one hero, or free sentences."""
    if rng.random() < 0.5:
        text = ' '.join(sentence(rng) for _ in range(rng.randint(3, 10)))
    else:
        hero, thing = rng.choice(words.NAMES), rng.choice(words.NOUNS)
        text = (
            f'{hero} lives {rng.choice(words.PLACES)}. One day {hero} finds a {rng.choice(words.ADJECTIVES)} {thing}. '
            + ' '.join(
                rng.choice(
                    [
                        f'{hero} {rng.choice(words.VERBS)} the {thing} {rng.choice(words.TIMES)}.',
                        f'The {thing} is {rng.choice(words.SENSES)}.',
                        sentence(rng),
                        f'{rng.choice(words.NAMES)} asks about the {thing}.',
                        f'"{about(rng, thing)}" says {hero}.',
                    ]
                )
                for _ in range(rng.randint(3, 8))
            )
        )
        text += f' In the end {hero} {rng.choice(words.VERBS)} the {thing} again.'
    return [chat.Piece(chat.BOS, True), chat.Piece(text, False, True), chat.Piece(chat.EOS, True, True)]


FUNCTIONS = [
    'def {name}({item}s):\n    """Return the {noun} of all {item}s."""\n    total = {number}\n'
    '    for {item} in {item}s:\n        total = total {sign} {item}\n    return total\n',
    'def {name}({item}, count={number}):\n    if {item} is None:\n        return []\n'
    '    return [{item} {sign} index for index in range(count)]\n',
    'int {name}(int {item}) {{\n  if ({item} < {number}) {{\n    return {item} {sign} {number};\n  }}\n'
    '  return {item};\n}}\n',
    'for (int i = 0; i < {number}; ++i) {{\n  {noun}[i] = {item}(i) {sign} {number};\n}}\n',
    'class {title}:\n    def __init__(self, {item}):\n        self.{item} = {item}\n\n'
    '    def {name}(self):\n        return self.{item} {sign} {number}\n',
    '{noun} = {{"{item}": {number}, "{other}": {second}}}\n'
    'for name, count in {noun}.items():\n    print(name, count)\n',
]


def function(rng):
    """A small Python or C function."""
    noun = rng.choice(words.NOUNS)
    return rng.choice(FUNCTIONS).format(
        name=f'{rng.choice(CODE_VERBS)}_{noun}',
        noun=noun,
        title=noun.title(),
        item=rng.choice(words.ITEMS),
        other=rng.choice(words.ITEMS),
        number=rng.randint(1, 99),
        second=rng.randint(1, 99),
        sign=rng.choice('+-*'),
    )


def code(rng):
    text = '\n'.join(function(rng) for _ in range(rng.randint(1, 5)))
    return [chat.Piece(chat.BOS, True), chat.Piece(text, False, True), chat.Piece(chat.EOS, True, True)]
