"""Generated tool calls: schemas in the prompt, requests, and the calls that answer them. data.py mixes them for
training, evaluate.py asks the held-out wordings. Every function takes a random.Random."""

import json

import chat
import words
from texts import identifier, sentence

TOOL_SYSTEMS = ['You are a helpful assistant.', 'Use the tools when they help.', 'You can call tools.', 'Be exact.']
TOOL_VERBS = '''get set find create delete update send list book cancel open close check add remove search move read
write start stop print'''.split()
TOOL_NOUNS = '''weather room mail user order file meeting ticket invoice note task event song lamp door report table
flight photo message account'''.split()
PARAMETERS = {  # name: (type, description)
    'city': ('string', 'Name of the city'),
    'name': ('string', 'Full name'),
    'title': ('string', 'Title'),
    'path': ('string', 'Path of the file'),
    'id': ('string', 'Identifier'),
    'color': ('string', 'Color'),
    'date': ('string', 'Date as YYYY-MM-DD'),
    'time': ('string', 'Time as HH:MM'),
    'email': ('string', 'Mail address'),
    'text': ('string', 'Text'),
    'query': ('string', 'What to look for'),
    'unit': ('string', 'Unit'),
    'days': ('integer', 'Number of days'),
    'count': ('integer', 'How many'),
    'level': ('integer', 'Level'),
    'limit': ('integer', 'Most results'),
    'price': ('number', 'Price'),
    'width': ('number', 'Width'),
    'speed': ('number', 'Speed'),
    'active': ('boolean', 'Whether active'),
    'urgent': ('boolean', 'Whether urgent'),
    'silent': ('boolean', 'Whether silent'),
    'tags': ('array', 'List of tags'),
    'numbers': ('array', 'List of numbers'),
    'address': ('object', 'Street, number and city'),
    'options': ('object', 'Options'),
    'position': ('object', 'Coordinates'),
    'person': ('object', 'A person'),
}


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
        return (
            [rng.randint(0, 99) for _ in range(rng.randint(1, 4))]
            if name == 'numbers'
            else [rng.choice(words.NOUNS) for _ in range(rng.randint(1, 4))]
        )
    return object_value(rng, name)


def string_value(rng, name):
    return {
        'city': lambda: rng.choice(words.CITIES),
        'name': lambda: f'{rng.choice(words.NAMES)} {rng.choice(words.NOUNS).title()}',
        'title': lambda: f'{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}',
        'path': lambda: f'/{rng.choice(words.NOUNS)}/{rng.choice(words.NOUNS)}.txt',
        'id': lambda: identifier(rng),
        'color': lambda: rng.choice(['red', 'blue', 'green', 'black', 'white', 'yellow']),
        'date': lambda: f'20{rng.randint(10, 40)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}',
        'time': lambda: f'{rng.randint(0, 23):02}:{rng.randint(0, 59):02}',
        'email': lambda: f'{rng.choice(words.NAMES).lower()}@{rng.choice(words.NOUNS)}.com',
        'text': lambda: sentence(rng),
        'query': lambda: f'{rng.choice(words.ADJECTIVES)} {words.plural(rng.choice(words.ITEMS))}',
        'unit': lambda: rng.choice(['celsius', 'meter', 'kilogram', 'hour']),
    }[name]()


def object_value(rng, name):
    if name == 'address':
        return {
            'street': f'{rng.choice(words.NOUNS).title()} Street',
            'number': rng.randint(1, 200),
            'city': rng.choice(words.CITIES),
        }
    if name == 'position':
        return {'x': rng.randint(0, 99), 'y': rng.randint(0, 99)}
    if name == 'person':
        return {
            'name': rng.choice(words.NAMES),
            'age': rng.randint(5, 90),
            'cities': [rng.choice(words.CITIES) for _ in range(rng.randint(1, 2))],
        }
    return {
        rng.choice(words.NOUNS): rng.choice([rng.randint(0, 99), rng.random() < 0.5, rng.choice(words.ADJECTIVES)])
        for _ in range(rng.randint(1, 3))
    }


def schema(rng):
    verb, noun = rng.choice(TOOL_VERBS), rng.choice(TOOL_NOUNS)
    names = rng.sample(list(PARAMETERS), rng.randint(1, 4))
    properties = {
        name: {'type': PARAMETERS[name][0]} | ({'description': PARAMETERS[name][1]} if rng.random() < 0.6 else {})
        for name in names
    }
    for name in names:
        if PARAMETERS[name][0] == 'array':
            properties[name]['items'] = {'type': 'integer' if name == 'numbers' else 'string'}
    required = names if rng.random() < 0.5 else names[:1]
    return {
        'name': f'{verb}_{noun}',
        'description': f'{verb.title()} a {noun}.',
        'parameters': {'type': 'object', 'properties': properties, 'required': required},
    }


def spoken(rng, name, content):
    shown = content if isinstance(content, str) else json.dumps(content)
    return rng.choice(
        [f'{name} {shown}', f'{name} is {shown}', f'{name}: {shown}', f'{name} = {shown}', f'the {name} is {shown}']
    )


ASK_CALL = [
    'Please {v} a {n} with {p}.',
    'Call {t} with {p}.',
    'Use {t}: {p}',
    'I want to {v} the {n}: {p}.',
    'Can you {v} a {n}? {p}',
    '{t}, {p}',
    'Run the tool {t} where {p}.',
    'Help me {v} a {n}. {p}.',
    'Now {v} one {n}, {p}.',
]
ASK_CALL_HELD = ['I need to {v} a {n}. Use the tool with {p}.', 'Please call {t} where {p}.']


def call_request(rng, tool, wordings):
    """(text of the request, arguments)."""
    properties, required = tool['parameters']['properties'], tool['parameters']['required']
    chosen = [name for name in properties if name in required or rng.random() < 0.6]
    arguments = {name: parameter_value(rng, name) for name in chosen}
    joined = rng.choice([', ', ' and ', '; ', ', ']).join(
        spoken(rng, name, content) for name, content in arguments.items()
    )
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
    for _ in range(rng.randint(1, 6)):
        tool = rng.choice(tools)
        text, arguments = call_request(rng, tool, ASK_CALL)
        reasoning = f'I should call {tool["name"]}.' if thinking else ''
        messages += [
            {'role': 'user', 'content': text},
            {'role': 'assistant', 'content': '', 'reasoning': reasoning, 'calls': [(tool['name'], arguments)]},
        ]
        if rng.random() < 0.3:
            answer, result = rng.choice(
                [('Done.', 'ok'), ('It worked.', '{"status": "ok"}'), ('The tool failed.', 'error')]
            )
            messages += [
                {'role': 'tool', 'content': result},
                {'role': 'assistant', 'content': answer, 'reasoning': 'The result is there.' if thinking else ''},
            ]
    return chat.render(messages, thinking=thinking, tools=tools)


def tool_case(rng):
    """(prompt pieces, tool name, arguments) of the test."""
    tools = tool_set(rng)
    tool = rng.choice(tools)
    text, arguments = call_request(rng, tool, ASK_CALL_HELD)
    return chat.render([{'role': 'user', 'content': text}], tools=tools), tool['name'], arguments
