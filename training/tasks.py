"""Generated conversations and texts: every function takes a random.Random and returns pieces (chat.py) or a test case. All text is
made here from words.py; nothing is copied from elsewhere. data.py mixes them for training, evaluate.py asks the held-out ones."""
import json

import chat
import problems
import words

SYSTEMS = ['You are a helpful assistant.', 'You are monostep-nano, a small model.', 'Answer briefly.', 'Be exact.', 'You help with small tasks.']
TOOL_SYSTEMS = ['You are a helpful assistant.', 'Use the tools when they help.', 'You can call tools.', 'Be exact.']


def talk(rng, question, answer, reasoning=None, **options):
    """One question and its answer; with reasoning it is a thinking conversation."""
    messages = [{'role': 'user', 'content': question}, {'role': 'assistant', 'content': answer, 'reasoning': reasoning or ''}]
    if rng.random() < 0.3:
        messages.insert(0, {'role': 'system', 'content': rng.choice(SYSTEMS)})
    effort = 75 if rng.random() < 0.7 else rng.choice([50, 100, rng.randint(1, 100)])
    return chat.render(messages, thinking=reasoning is not None, effort=effort, **options)


# ---- arithmetic -----------------------------------------------------------------------------------------------------------

def word_problem(rng):
    question, steps, answer = problems.word_problem(rng)
    worked = '\n'.join(steps)
    if rng.random() < 0.35:
        return talk(rng, question, f'Answer: {answer}', reasoning=worked)
    return talk(rng, question, f'{worked}\nAnswer: {answer}')


def sums(rng):
    """A few plain sums in one conversation."""
    messages = []
    for _ in range(rng.randint(2, 8)):
        question, answer = problems.sum_question(rng)
        asked = rng.choice([f'{question} =', f'What is {question}?', f'Compute {question}.', question])
        messages += [{'role': 'user', 'content': asked}, {'role': 'assistant', 'content': f'{question} = {answer}\nAnswer: {answer}'}]
    return chat.render(messages)


# ---- copying --------------------------------------------------------------------------------------------------------------

ALPHABETS = ['abcdefghijklmnopqrstuvwxyz', 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', '0123456789', 'abcdefghijklmnopqrstuvwxyz0123456789',
             'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789', '0123456789abcdef']
COPY = ['Repeat exactly: {x}', 'Copy this without changes: {x}', 'Write {x} again.', 'Say {x}', 'Copy the following line:\n{x}', 'Return this identifier: {x}',
        'Please repeat this text word for word:\n{x}', 'Echo: {x}', 'Output only this: {x}', 'Print the line below.\n{x}']
COPY_HELD = ['Copy this text exactly: {x}', 'Repeat the following line without changes:\n{x}']


def identifier(rng):
    parts = []
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.3:
            parts.append(rng.choice([str, str.upper, str.title])(rng.choice(words.NOUNS + words.ADJECTIVES)))
        else:
            alphabet = rng.choice(ALPHABETS)
            parts.append(''.join(rng.choice(alphabet) for _ in range(rng.randint(2, 9))))
    return rng.choice(['-', '_', '.', '/', ':', '', '@', '#']).join(parts)


def copy_text(rng):
    if rng.random() < 0.75:
        return rng.choice([' ', ' ', ', ', '\n']).join(identifier(rng) for _ in range(rng.randint(1, 4)))
    return sentence(rng)


def copying(rng):
    messages = []
    for _ in range(rng.randint(1, 4)):
        text = copy_text(rng)
        messages += [{'role': 'user', 'content': rng.choice(COPY).format(x=text)}, {'role': 'assistant', 'content': text}]
    return chat.render(messages)


def copy_case(rng):
    """(prompt pieces, expected answer) of the test."""
    text = ' '.join(identifier(rng) for _ in range(rng.randint(2, 3)))
    return chat.render([{'role': 'user', 'content': rng.choice(COPY_HELD).format(x=text)}]), text


# ---- retrieval ------------------------------------------------------------------------------------------------------------

def key(rng):
    return f'{rng.choice(words.ADJECTIVES)}-{rng.choice(words.NOUNS)}'


def value(rng):
    return str(rng.randint(1000, 99999)) if rng.random() < 0.7 else identifier(rng)


FACTS = ['The code of {k} is {v}.', 'The number for {k} is {v}.', 'Remember: {k} has the code {v}.', 'For {k} the code is {v}.', '{k}: {v}', '{k} = {v}']
ASK_FACT = ['What is the code of {k}?', 'Which code does {k} have?', 'Tell me the code of {k}.', 'What is the number for {k}?', 'code of {k}?',
            'I need the value of {k}.']
CONTEXTS = ['Read this text and remember it.\n\n', 'Here are some notes.\n\n', 'Context:\n', 'Use the following text.\n\n', '']


def haystack(rng, size, num_facts, list_only):
    """Text of about `size` characters with facts strewn in: (text, {key: value})."""
    facts = {}
    while len(facts) < num_facts:
        facts[key(rng)] = value(rng)
    style = rng.choice(FACTS)
    needles = [(style if rng.random() < 0.7 else rng.choice(FACTS)).format(k=name, v=code) for name, code in facts.items()]
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
    """Short: a few hundred tokens; with `size` characters: long."""
    list_only = size is None and rng.random() < 0.5
    num_facts = rng.randint(2, 40 if list_only else 12) if size is None else rng.randint(4, 40)
    text, facts = haystack(rng, size or rng.randint(200, 2500), num_facts, list_only)
    return chat.render(asked(rng, text, facts, rng.randint(2, 8) if size is None else rng.randint(4, 14)))


def retrieval_case(rng, size):
    """(prompt pieces, expected value): one question on one of a few needles in `size` characters."""
    text, facts = haystack(rng, size, 6, False)
    name = rng.choice(list(facts))
    content = f'Read this text and remember it.\n\n{text}\n\nWhat is the code of {name}?'
    return chat.render([{'role': 'user', 'content': content}]), facts[name]


# ---- tool calls -----------------------------------------------------------------------------------------------------------

TOOL_VERBS = 'get set find create delete update send list book cancel open close check add remove search move read write start stop print'.split()
TOOL_NOUNS = 'weather room mail user order file meeting ticket invoice note task event song lamp door report table flight photo message account'.split()
PARAMETERS = {  # name: (type, description)
    'city': ('string', 'Name of the city'), 'name': ('string', 'Full name'), 'title': ('string', 'Title'), 'path': ('string', 'Path of the file'),
    'id': ('string', 'Identifier'), 'color': ('string', 'Color'), 'date': ('string', 'Date as YYYY-MM-DD'), 'time': ('string', 'Time as HH:MM'),
    'email': ('string', 'Mail address'), 'text': ('string', 'Text'), 'query': ('string', 'What to look for'), 'unit': ('string', 'Unit'),
    'days': ('integer', 'Number of days'), 'count': ('integer', 'How many'), 'level': ('integer', 'Level'), 'limit': ('integer', 'Most results'),
    'price': ('number', 'Price'), 'width': ('number', 'Width'), 'speed': ('number', 'Speed'), 'active': ('boolean', 'Whether active'),
    'urgent': ('boolean', 'Whether urgent'), 'silent': ('boolean', 'Whether silent'), 'tags': ('array', 'List of tags'), 'numbers': ('array', 'List of numbers'),
    'address': ('object', 'Street, number and city'), 'options': ('object', 'Options'), 'position': ('object', 'Coordinates'), 'person': ('object', 'A person')}


def parameter_value(rng, name):
    kind = PARAMETERS[name][0]
    if kind == 'string':
        return string_value(rng, name)
    if kind == 'integer':
        return rng.randint(0, 200)
    if kind == 'number':
        return round(rng.uniform(0, 100), rng.choice([1, 2]))
    if kind == 'boolean':
        return rng.random() < 0.5
    if kind == 'array':
        return [rng.randint(0, 99) for _ in range(rng.randint(1, 4))] if name == 'numbers' else [rng.choice(words.NOUNS) for _ in range(rng.randint(1, 4))]
    return object_value(rng, name)


def string_value(rng, name):
    return {'city': lambda: rng.choice(words.CITIES), 'name': lambda: f'{rng.choice(words.NAMES)} {rng.choice(words.NOUNS).title()}',
            'title': lambda: f'{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}', 'path': lambda: f'/{rng.choice(words.NOUNS)}/{rng.choice(words.NOUNS)}.txt',
            'id': lambda: identifier(rng), 'color': lambda: rng.choice(['red', 'blue', 'green', 'black', 'white', 'yellow']),
            'date': lambda: f'20{rng.randint(10, 40)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}', 'time': lambda: f'{rng.randint(0, 23):02}:{rng.randint(0, 59):02}',
            'email': lambda: f'{rng.choice(words.NAMES).lower()}@{rng.choice(words.NOUNS)}.com', 'text': lambda: sentence(rng),
            'query': lambda: f'{rng.choice(words.ADJECTIVES)} {words.plural(rng.choice(words.ITEMS))}', 'unit': lambda: rng.choice(['celsius', 'meter', 'kilogram', 'hour'])}[name]()


def object_value(rng, name):
    if name == 'address':
        return {'street': f'{rng.choice(words.NOUNS).title()} Street', 'number': rng.randint(1, 200), 'city': rng.choice(words.CITIES)}
    if name == 'position':
        return {'x': rng.randint(0, 99), 'y': rng.randint(0, 99)}
    if name == 'person':
        return {'name': rng.choice(words.NAMES), 'age': rng.randint(5, 90), 'cities': [rng.choice(words.CITIES) for _ in range(rng.randint(1, 2))]}
    return {rng.choice(words.NOUNS): rng.choice([rng.randint(0, 99), rng.random() < 0.5, rng.choice(words.ADJECTIVES)]) for _ in range(rng.randint(1, 3))}


def schema(rng):
    verb, noun = rng.choice(TOOL_VERBS), rng.choice(TOOL_NOUNS)
    names = rng.sample(list(PARAMETERS), rng.randint(1, 4))
    properties = {name: {'type': PARAMETERS[name][0]} | ({'description': PARAMETERS[name][1]} if rng.random() < 0.6 else {}) for name in names}
    for name in names:
        if PARAMETERS[name][0] == 'array':
            properties[name]['items'] = {'type': 'integer' if name == 'numbers' else 'string'}
    required = names if rng.random() < 0.5 else names[:1]
    return {'name': f'{verb}_{noun}', 'description': f'{verb.title()} a {noun}.', 'parameters': {'type': 'object', 'properties': properties, 'required': required}}


def spoken(rng, name, content):
    shown = content if isinstance(content, str) else json.dumps(content)
    return rng.choice([f'{name} {shown}', f'{name} is {shown}', f'{name}: {shown}', f'{name} = {shown}', f'the {name} is {shown}'])


ASK_CALL = ['Please {v} a {n} with {p}.', 'Call {t} with {p}.', 'Use {t}: {p}', 'I want to {v} the {n}: {p}.', 'Can you {v} a {n}? {p}', '{t}, {p}',
            'Run the tool {t} where {p}.', 'Help me {v} a {n}. {p}.', 'Now {v} one {n}, {p}.']
ASK_CALL_HELD = ['I need to {v} a {n}. Use the tool with {p}.', 'Please call {t} where {p}.']


def call_request(rng, tool, wordings):
    """(text of the request, arguments)."""
    properties, required = tool['parameters']['properties'], tool['parameters']['required']
    chosen = [name for name in properties if name in required or rng.random() < 0.6]
    arguments = {name: parameter_value(rng, name) for name in chosen}
    joined = rng.choice([', ', ' and ', '; ', ', ']).join(spoken(rng, name, content) for name, content in arguments.items())
    verb, noun = tool['name'].split('_')
    return rng.choice(wordings).format(v=verb, n=noun, t=tool['name'], p=joined), arguments


def tool_set(rng):
    found = {}
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        tool = schema(rng)
        found[tool['name']] = tool
    return list(found.values())


def tool_call(rng):
    """Calls from schemas in the prompt, with a result and a closing answer now and then."""
    tools = tool_set(rng)
    messages = [{'role': 'system', 'content': rng.choice(TOOL_SYSTEMS)}] if rng.random() < 0.5 else []
    thinking = rng.random() < 0.25
    for _ in range(rng.randint(1, 4)):
        tool = rng.choice(tools)
        text, arguments = call_request(rng, tool, ASK_CALL)
        reasoning = f'I should call {tool["name"]}.' if thinking else ''
        messages += [{'role': 'user', 'content': text}, {'role': 'assistant', 'content': '', 'reasoning': reasoning, 'calls': [(tool['name'], arguments)]}]
        if rng.random() < 0.3:
            answer, result = rng.choice([('Done.', 'ok'), ('It worked.', '{"status": "ok"}'), ('The tool failed.', 'error')])
            messages += [{'role': 'tool', 'content': result}, {'role': 'assistant', 'content': answer, 'reasoning': 'The result is there.' if thinking else ''}]
    return chat.render(messages, thinking=thinking, tools=tools)


def tool_case(rng):
    """(prompt pieces, tool name, arguments) of the test."""
    tools = tool_set(rng)
    tool = rng.choice(tools)
    text, arguments = call_request(rng, tool, ASK_CALL_HELD)
    return chat.render([{'role': 'user', 'content': text}], tools=tools), tool['name'], arguments


# ---- English and code -----------------------------------------------------------------------------------------------------

def noun_phrase(rng):
    if rng.random() < 0.25:
        return rng.choice(words.NAMES)
    return f'the {rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}' if rng.random() < 0.6 else f'the {rng.choice(words.NOUNS)}'


def sentence(rng):
    subject, other, verb = noun_phrase(rng), noun_phrase(rng), rng.choice(words.VERBS)
    place, when = rng.choice(words.PLACES), rng.choice(words.TIMES)
    text = rng.choice([f'{subject} {verb} {other} {place}', f'{when}, {subject} {verb} {other}', f'{subject} {verb} {other} {when}', f'{place}, {subject} {verb} {other}',
                       f'{subject} is {rng.choice(words.SENSES)} and {rng.choice(words.SENSES)} {when}', f'{subject} {verb} {other} because {noun_phrase(rng)} is {rng.choice(words.SENSES)}',
                       f'when {subject} {verb} {other}, {noun_phrase(rng)} {rng.choice(words.VERBS)} {noun_phrase(rng)}'])
    return text[0].upper() + text[1:] + '.'


def about(rng, topic):
    sense, other = rng.choice(words.SENSES), rng.choice(words.SENSES)
    return rng.choice([f'The {topic} is {sense} and {other} {rng.choice(words.TIMES)}.', f'{rng.choice(words.NAMES)} {rng.choice(words.VERBS)} the {topic} {rng.choice(words.PLACES)}.',
                       f'{rng.choice(words.TIMES).capitalize()}, the {topic} is {sense}.', f'The {sense} {topic} {rng.choice(words.VERBS)} the {rng.choice(words.NOUNS)}.'])


def story(rng):
    """Plain text: a paragraph that keeps to one hero, or free sentences."""
    if rng.random() < 0.5:
        text = ' '.join(sentence(rng) for _ in range(rng.randint(3, 10)))
    else:
        hero, thing = rng.choice(words.NAMES), rng.choice(words.NOUNS)
        text = f'{hero} lives {rng.choice(words.PLACES)}. One day {hero} finds a {rng.choice(words.ADJECTIVES)} {thing}. ' + ' '.join(
            rng.choice([f'{hero} {rng.choice(words.VERBS)} the {thing} {rng.choice(words.TIMES)}.', f'The {thing} is {rng.choice(words.SENSES)}.', sentence(rng),
                        f'{rng.choice(words.NAMES)} asks about the {thing}.', f'"{about(rng, thing)}" says {hero}.']) for _ in range(rng.randint(3, 8)))
        text += f' In the end {hero} {rng.choice(words.VERBS)} the {thing} again.'
    return [chat.Piece(chat.BOS, True), chat.Piece(text, False, True), chat.Piece(chat.EOS, True, True)]


def function(rng):
    """A small Python or C function."""
    noun, item = rng.choice(words.NOUNS), rng.choice(words.ITEMS)
    name = f'{rng.choice(TOOL_VERBS)}_{noun}'
    number, sign = rng.randint(1, 99), rng.choice('+-*')
    return rng.choice([
        f'def {name}({item}s):\n    """Return the {noun} of all {item}s."""\n    total = {number}\n    for {item} in {item}s:\n        total = total {sign} {item}\n    return total\n',
        f'def {name}({item}, count={number}):\n    if {item} is None:\n        return []\n    return [{item} {sign} index for index in range(count)]\n',
        f'int {name}(int {item}) {{\n  if ({item} < {number}) {{\n    return {item} {sign} {number};\n  }}\n  return {item};\n}}\n',
        f'for (int i = 0; i < {number}; ++i) {{\n  {noun}[i] = {item}(i) {sign} {number};\n}}\n',
        f'class {noun.title()}:\n    def __init__(self, {item}):\n        self.{item} = {item}\n\n    def {name}(self):\n        return self.{item} {sign} {number}\n',
        f'{noun} = {{"{item}": {number}, "{rng.choice(words.ITEMS)}": {rng.randint(1, 99)}}}\nfor name, count in {noun}.items():\n    print(name, count)\n'])


def code(rng):
    text = '\n'.join(function(rng) for _ in range(rng.randint(1, 5)))
    return [chat.Piece(chat.BOS, True), chat.Piece(text, False, True), chat.Piece(chat.EOS, True, True)]


SMALL_TALK = [('Hello!', 'Hello! How can I help you?'), ('Hi', 'Hello! How can I help you?'), ('Who are you?', 'I am monostep-nano, a small model for tests.'),
              ('What is your name?', 'I am monostep-nano, a small model for tests.'), ('Thank you.', 'You are welcome.'), ('Good morning.', 'Good morning! How can I help you?'),
              ('What can you do?', 'I solve small word problems, find codes in a text, copy text and call tools.'), ('Bye', 'Goodbye!'), ('Help', 'Ask me a word problem, or give me a text and a question about it.')]


def small_talk(rng):
    question, answer = rng.choice(SMALL_TALK)
    if rng.random() < 0.6:
        topic = rng.choice(['sea', 'sky', 'moon', 'rain', *words.NOUNS])
        question = rng.choice([f'Write one sentence about the {topic}.', f'Say something about the {topic}.', f'Tell me about the {topic}.'])
        answer = about(rng, topic)
    elif rng.random() < 0.3:
        question, answer = rng.choice(['Write a story.', 'Tell me a story.', 'Write some sentences.']), ' '.join(sentence(rng) for _ in range(rng.randint(2, 5)))
    elif rng.random() < 0.3:
        question, answer = rng.choice(['Write a function.', 'Write some code.', 'Show me a small program.']), function(rng)
    return talk(rng, question, answer, reasoning='The user wants a short answer.' if rng.random() < 0.25 else None)
