"""What train.py measures at the end of a part: the share of held-out answers whose every token is the model's first
choice, given the text before it. Quick, and a little kinder than evaluate.py, which lets the engine write the answers
itself."""

import random

import torch

import chat
import problems
import tasks
import tools

AT_ONCE = 4  # rows of a pass
RETRIEVAL_CHARACTERS = {'retrieval': 2000, 'retrieval_4k': 16000}


def answered(pieces, text):
    return [*pieces, chat.Piece(text, False, True), chat.Piece(chat.EOS, True, True)]


def called(pieces, name, arguments):
    return [
        *pieces,
        chat.Piece('\n\n', False, True),
        *chat.calls_text([(name, arguments)]),
        chat.Piece(chat.EOS, True, True),
    ]


def solved(rng):
    question, steps, answer = problems.word_problem(rng, held_out=True)
    return answered(chat.render([{'role': 'user', 'content': question}]), '\n'.join(steps) + f'\nAnswer: {answer}')


def measure(model, tokenizer, selection, longest, num_cases):
    """{family: share}; families whose texts do not fit into `longest` tokens are left out."""
    rng, device = random.Random(99), model.embed.device
    makers = {
        'problems': lambda: solved(rng),
        'copy': lambda: answered(*tasks.copy_case(rng)),
        'tools': lambda: called(*tools.tool_case(rng)),
    }
    for name, characters in RETRIEVAL_CHARACTERS.items():
        if characters < 3 * longest:
            makers[name] = lambda characters=characters: answered(*tasks.retrieval_case(rng, characters))
    shares = {}
    for name, make in makers.items():
        encoded = [chat.encode(make(), tokenizer) for _ in range(num_cases)]
        encoded = [case for case in encoded if len(case[0]) <= longest]
        right = sum(
            count_right(
                model, selection, encoded[first : first + AT_ONCE], longest, tokenizer.token_to_id(chat.PAD), device
            )
            for first in range(0, len(encoded), AT_ONCE)
        )
        shares[name] = right / max(1, len(encoded))
    return shares


@torch.no_grad()
def count_right(model, selection, cases, longest, pad, device):
    ids = torch.full((AT_ONCE, longest), pad)
    targets = torch.zeros(AT_ONCE, longest, dtype=torch.bool)
    for row, (tokens, written) in enumerate(cases):
        ids[row, : len(tokens)], targets[row, : len(tokens)] = torch.tensor(tokens), torch.tensor(written)
    ids, targets = ids.to(device), targets.to(device)
    hidden = model(ids, selection)['hidden'][:, :-1]
    best = torch.stack([model.logits(one).argmax(-1) for one in hidden])
    wrong = ((best != ids[:, 1:]) & targets[:, 1:]).any(-1)
    return int((~wrong & targets.any(-1)).sum())
