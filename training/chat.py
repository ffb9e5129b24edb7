"""Conversations to prompts in the model's wire format, as pieces: what the template puts is a token by itself,
message text is plain. Covers what the training data needs: system, user, tool results, assistant with reasoning and
calls. data.py and evaluate.py call it; the tests of the format are the recorded cases named in README.md."""

import dataclasses
import json

BOS, EOS, PAD = '<｜begin▁of▁sentence｜>', '<｜end▁of▁sentence｜>', '<｜▁pad▁｜>'
SYSTEM, USER, ASSISTANT = '<｜System｜>', '<｜User｜>', '<｜Assistant｜>'
THINK, END_THINK, DSML = '<think>', '</think>', '｜DSML｜'

TOOL_PREAMBLE = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOL_CLOSING = '\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n'


@dataclasses.dataclass(frozen=True)
class Piece:
    text: str
    special: bool = False  # one token by itself
    target: bool = False  # written by the model


def markers(text, target=False):
    """Text in which the template's DSML marks are tokens; everything between is plain."""
    pieces = []
    for number, part in enumerate(text.split(DSML)):
        if number:
            pieces.append(Piece(DSML, True, target))
        if part:
            pieces.append(Piece(part, False, target))
    return pieces


def preamble(tools):
    """The tool preamble: DSML marks and the think tokens it shows are the template's own."""
    schemas = '\n'.join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    pieces = []
    for piece in markers(TOOL_PREAMBLE):
        pieces += [piece] if piece.special else split_think(piece.text)
    return pieces + [Piece(schemas), Piece(TOOL_CLOSING)]


def split_think(text):
    pieces = []
    for number, part in enumerate(text.split(END_THINK)):
        if number:
            pieces.append(Piece(END_THINK, True))
        for inner, rest in enumerate(part.split(THINK)):
            if inner:
                pieces.append(Piece(THINK, True))
            if rest:
                pieces.append(Piece(rest))
    return pieces


def calls_text(calls):
    """calls: [(name, {parameter: value})]; strings stand as they are, all else is JSON."""
    pieces = [*markers(f'<{DSML} calls>\n', True)]
    for number, (name, arguments) in enumerate(calls):
        pieces += markers(('\n' if number else '') + f'<{DSML} invoke name="', True) + [
            Piece(name, False, True),
            Piece('">\n', False, True),
        ]
        last = next(reversed(arguments), None)
        for key, value in arguments.items():
            is_string = isinstance(value, str)
            text = value if is_string else json.dumps(value, ensure_ascii=False)
            pieces += markers(f'<{DSML} parameter name="', True)
            pieces += [
                Piece(f'{key}" string="{"true" if is_string else "false"}">', False, True),
                Piece(text, False, True),
            ]
            pieces += markers(f'</{DSML} parameter>' + ('' if key == last else '\n'), True)
        pieces += markers(f'\n</{DSML} invoke>', True)
    return pieces + markers(f'\n</{DSML} calls>', True)


def effort_line(effort):
    return f'Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n'


def render(messages, thinking=False, tools=None, effort=75):
    """Pieces of a conversation. Messages: {'role': system|user|tool|assistant, 'content', 'reasoning', 'calls'}; tool
    results that have an 'id' are put into the order of the 'ids' of the calls. A last message that is not the
    assistant's is followed by the header that the model answers behind. `tools` go into the first message."""
    messages = in_call_order(messages)
    pieces = [Piece(BOS, True)]
    keep_reasoning = bool(tools)
    last_user = max((i for i, message in enumerate(messages) if message['role'] in ('user', 'tool')), default=-1)
    starts_with_system = bool(messages) and messages[0]['role'] == 'system'
    if thinking or starts_with_system or tools:
        pieces.append(Piece(SYSTEM, True))
    if thinking:
        pieces.append(Piece(effort_line(effort)))
    if starts_with_system:
        pieces.append(Piece(messages[0]['content']))
    if tools:
        pieces += [Piece('\n\n'), *preamble(tools)]
    for number, message in enumerate(messages):
        role = message['role']
        if role in ('user', 'tool'):
            pieces += user_turn(messages, number)
            following = messages[number + 1]['role'] if number + 1 < len(messages) else 'assistant'
            if following == 'assistant':
                thinks = thinking and (keep_reasoning or number == last_user)
                pieces += [Piece(ASSISTANT, True), Piece(THINK if thinks else END_THINK, True)]
        elif role == 'assistant':
            pieces += assistant_turn(message, thinking and (keep_reasoning or number > last_user))
    return [piece for piece in pieces if piece.text]


def in_call_order(messages):
    """The same messages with the tool results of a turn in the order of the calls before it."""
    ordered, order, places = list(messages), {}, []
    for number, message in enumerate([*messages, {'role': 'assistant'}]):
        if message['role'] == 'tool':
            places.append(number)
        elif message['role'] == 'assistant':
            results = sorted((messages[place] for place in places), key=lambda result: order.get(result.get('id'), 0))
            for place, result in zip(places, results):
                ordered[place] = result
            order, places = {name: place for place, name in enumerate(message.get('ids', []))}, []
    return ordered


def user_turn(messages, number):
    """User messages and tool results that follow each other share one turn."""
    message = messages[number]
    follows = number > 0 and messages[number - 1]['role'] in ('user', 'tool')
    opening = [Piece('\n\n')] if follows else [Piece(USER, True)]
    if message['role'] == 'tool':
        return opening + [Piece('<tool_result>'), Piece(message['content']), Piece('</tool_result>')]
    return opening + [Piece(message['content'])]


def assistant_turn(message, with_reasoning):
    pieces = []
    if with_reasoning:
        pieces += [Piece(message.get('reasoning', ''), False, True), Piece(END_THINK, True, True)]
    pieces.append(Piece(message.get('content', ''), False, True))
    if message.get('calls'):
        pieces += [Piece('\n\n', False, True), *calls_text(message['calls'])]
    return pieces + [Piece(EOS, True, True)]


def text_of(pieces):
    return ''.join(piece.text for piece in pieces)


def encode(pieces, tokenizer):
    """(ids, targets): plain text that follows plain text is tokenised as one, as servers do."""
    ids, targets, number = [], [], 0
    while number < len(pieces):
        piece = pieces[number]
        if piece.special:
            ids.append(tokenizer.token_to_id(piece.text))
            targets.append(piece.target)
            number += 1
            continue
        run = [piece.text]
        while number + 1 < len(pieces) and not pieces[number + 1].special and pieces[number + 1].target == piece.target:
            number += 1
            run.append(pieces[number].text)
        found = tokenizer.encode(''.join(run), add_special_tokens=False).ids
        ids += found
        targets += [piece.target] * len(found)
        number += 1
    return ids, targets
