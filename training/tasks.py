"""Generated conversations: arithmetic, copying, retrieval, small talk. Every function takes a random.Random and
returns pieces (chat.py) or a test case. All text is made here from words.py; nothing is copied from elsewhere.
data.py mixes them for training, evaluate.py asks the held-out ones."""

import chat
import problems
import words
from texts import ALPHABETS, about, function, identifier, sentence

SYSTEMS = [
    'You are a helpful assistant.',
    'You are monostep-nano, a small model.',
    'Answer briefly.',
    'Be exact.',
    'You help with small tasks.',
]


def talk(rng, question, answer, reasoning=None, **options):
    """One question and its answer; with reasoning it is a thinking conversation."""
    messages = [
        {'role': 'user', 'content': question},
        {'role': 'assistant', 'content': answer, 'reasoning': reasoning or ''},
    ]
    if rng.random() < 0.3:
        messages.insert(0, {'role': 'system', 'content': rng.choice(SYSTEMS)})
    effort = 75 if rng.random() < 0.7 else rng.choice([50, 100, rng.randint(1, 100)])
    return chat.render(messages, thinking=reasoning is not None, effort=effort, **options)


# ---- arithmetic --------------------------------------------------------------------------------------------


def word_problem(rng):
    question, steps, answer = problems.word_problem(rng)
    written = '\n'.join(steps)
    if rng.random() < 0.25:
        return talk(rng, question, f'Answer: {answer}', reasoning=written)
    return talk(rng, question, f'{written}\nAnswer: {answer}')


def sums(rng):
    """Plain sums: asked one by one in a conversation, or lines whose left sides are given."""
    if rng.random() < 0.4:
        messages = []
        for _ in range(rng.randint(1, 5)):
            left, sign, right = problems.sum_question(rng)
            written, result = problems.worked(left, sign, right)
            question = f'{left} {sign} {right}'
            asked_for = rng.choice([f'{question} =', f'What is {question}?', f'Compute {question}.', question])
            messages += [
                {'role': 'user', 'content': asked_for},
                {'role': 'assistant', 'content': f'{written}\nAnswer: {result}'},
            ]
        return chat.render(messages)
    pieces = [chat.Piece(chat.BOS, True)]
    for _ in range(rng.randint(4, 20)):
        left, sign, right = problems.sum_question(rng)
        given = f'{left} {sign} {right}'
        pieces += [
            chat.Piece(given),
            chat.Piece(problems.worked(left, sign, right)[0].removeprefix(given) + '\n', False, True),
        ]
    return pieces + [chat.Piece(chat.EOS, True)]


# ---- copying -----------------------------------------------------------------------------------------------

COPY = [
    'Repeat exactly: {x}',
    'Copy this without changes: {x}',
    'Write {x} again.',
    'Say {x}',
    'Copy the following line:\n{x}',
    'Return this identifier: {x}',
    'Please repeat this text word for word:\n{x}',
    'Echo: {x}',
    'Output only this: {x}',
    'Print the line below.\n{x}',
]
COPY_HELD = ['Copy this text exactly: {x}', 'Repeat the following line without changes:\n{x}']


def copy_text(rng):
    if rng.random() < 0.8:
        return rng.choice([' ', ' ', ', ', '\n']).join(
            identifier(rng) for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4]))
        )
    return sentence(rng)


def short_string(rng):
    """Random characters: what copying is learnt from first."""
    alphabet = rng.choice(ALPHABETS)
    return ''.join(rng.choice(alphabet) for _ in range(rng.randint(3, 14)))


def copying(rng):
    """Short strings in many turns, or whole identifiers in a few."""
    make, turns = (short_string, rng.randint(2, 8)) if rng.random() < 0.35 else (copy_text, rng.randint(1, 4))
    messages = []
    for _ in range(turns):
        text = make(rng)
        messages += [
            {'role': 'user', 'content': rng.choice(COPY).format(x=text)},
            {'role': 'assistant', 'content': text},
        ]
    return chat.render(messages)


def copy_case(rng):
    """(prompt pieces, expected answer) of the test."""
    text = ' '.join(identifier(rng) for _ in range(rng.randint(2, 3)))
    return chat.render([{'role': 'user', 'content': rng.choice(COPY_HELD).format(x=text)}]), text


# ---- retrieval ---------------------------------------------------------------------------------------------

LETTERS = 'ABCDEFGHJKLMNPQRSTUVWXYZ'


def key(rng):
    return f'{rng.choice(words.ADJECTIVES)}-{rng.choice(words.NOUNS)}'


def value(rng):
    """Mostly numbers of four to six digits, else a short code."""
    if rng.random() < 0.75:
        return str(rng.randint(1000, 999999 if rng.random() < 0.3 else 99999))
    number = rng.randint(10, 9999)
    return rng.choice(
        [
            f'{rng.choice(LETTERS)}{rng.randint(1, 99)}-{number}',
            f'{rng.choice(words.NOUNS)}-{number}',
            ''.join(rng.choice(LETTERS) for _ in range(3)) + str(number),
        ]
    )


FACTS = [
    'The code of {k} is {v}.',
    'The number for {k} is {v}.',
    'Remember: {k} has the code {v}.',
    'For {k} the code is {v}.',
    '{k}: {v}',
    '{k} = {v}',
]
ASK_FACT = [
    'What is the code of {k}?',
    'Which code does {k} have?',
    'Tell me the code of {k}.',
    'What is the number for {k}?',
    'code of {k}?',
    'I need the value of {k}.',
]
CONTEXTS = [
    'Read this text and remember it.\n\n',
    'Here are some notes.\n\n',
    'Context:\n',
    'Use the following text.\n\n',
    '',
]


def haystack(rng, size, num_facts, list_only):
    """Text of about `size` characters with facts strewn in: (text, {key: value})."""
    facts = {}
    while len(facts) < num_facts:
        facts[key(rng)] = value(rng)
    style = rng.choice(FACTS)
    needles = [
        (style if rng.random() < 0.7 else rng.choice(FACTS)).format(k=name, v=code) for name, code in facts.items()
    ]
    if list_only:
        return '\n'.join(needles), facts
    filler, total = [], sum(map(len, needles))
    while total < size:
        filler.append(sentence(rng))
        total += len(filler[-1]) + 1
    for needle in needles:
        filler.insert(rng.randint(0, len(filler)), needle)
    return rng.choice([' ', '\n']).join(filler), facts


def asked(rng, text, facts, num_questions):
    names = rng.sample(list(facts), min(num_questions, len(facts)))
    messages = []
    for number, name in enumerate(names):
        question = rng.choice(ASK_FACT).format(k=name)
        opening = f'{rng.choice(CONTEXTS)}{text}\n\n' if number == 0 else ''
        messages += [{'role': 'user', 'content': opening + question}, {'role': 'assistant', 'content': facts[name]}]
    return messages


def retrieval(rng, size=None):
    """Short: two facts to some hundred tokens, small ones more often; with `size` characters: long, with many
    questions."""
    if size is not None:
        text, facts = haystack(rng, size, rng.randint(6, 40), False)
        return chat.render(asked(rng, text, facts, rng.randint(8, 24)))
    list_only = rng.random() < 0.5
    num_facts = int(2 ** rng.uniform(1, 5.3 if list_only else 3.6))
    text, facts = haystack(rng, int(100 * 2 ** rng.uniform(0, 4.6)), num_facts, list_only)
    return chat.render(asked(rng, text, facts, rng.randint(2, 14)))


def retrieval_case(rng, size):
    """(prompt pieces, expected value): one question on one of a few needles in `size` characters."""
    text, facts = haystack(rng, size, 6, False)
    name = rng.choice(list(facts))
    content = f'Read this text and remember it.\n\n{text}\n\nWhat is the code of {name}?'
    return chat.render([{'role': 'user', 'content': content}]), facts[name]


# ---- small talk --------------------------------------------------------------------------------------------

SMALL_TALK = [
    ('Hello!', 'Hello! How can I help you?'),
    ('Hi', 'Hello! How can I help you?'),
    ('Who are you?', 'I am monostep-nano, a small model for tests.'),
    ('What is your name?', 'I am monostep-nano, a small model for tests.'),
    ('Thank you.', 'You are welcome.'),
    ('Good morning.', 'Good morning! How can I help you?'),
    ('What can you do?', 'I solve small word problems, find codes in a text, copy text and call tools.'),
    ('Bye', 'Goodbye!'),
    ('Help', 'Ask me a word problem, or give me a text and a question about it.'),
]


def small_talk(rng):
    question, answer = rng.choice(SMALL_TALK)
    if rng.random() < 0.6:
        topic = rng.choice(['sea', 'sky', 'moon', 'rain', *words.NOUNS])
        question = rng.choice(
            [
                f'Write one sentence about the {topic}.',
                f'Say something about the {topic}.',
                f'Tell me about the {topic}.',
            ]
        )
        answer = about(rng, topic)
    elif rng.random() < 0.3:
        question, answer = (
            rng.choice(['Write a story.', 'Tell me a story.', 'Write some sentences.']),
            ' '.join(sentence(rng) for _ in range(rng.randint(2, 5))),
        )
    elif rng.random() < 0.3:
        question, answer = (
            rng.choice(['Write a function.', 'Write some code.', 'Show me a small program.']),
            function(rng),
        )
    return talk(rng, question, answer, reasoning='The user wants a short answer.' if rng.random() < 0.25 else None)
