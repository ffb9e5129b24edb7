#!/usr/bin/env python3
"""Trains the byte-level BPE of monostep-nano on generated text and writes tokenizer.json, tokenizer_config.json,
config.json and token_classes.safetensors into a folder. Same split rules, special tokens and names as the released
tokenizer, whose file is read from tests/golden/tokenizer; digits stay single tokens.
usage: make_tokenizer.py --config nano_config.json --out FOLDER"""

import argparse
import gzip
import json
import pathlib
import random
import subprocess
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import chat
import data
import tasks
import tools

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUM_DOCUMENTS = 30000
MIN_FREQUENCY = 40  # of a merge: pairs of random letters stay below it
FIRST = (chat.BOS, chat.EOS, chat.PAD)


def released():
    return json.loads(gzip.decompress((ROOT / 'tests/golden/tokenizer/tokenizer.json.gz').read_bytes()))


def named(added):
    """The special tokens that have a name of their own; the first three keep their ids."""
    return [token for token in added if 'place' not in token['content'] and 'image' not in token['content']]


def plain_texts(num_documents):
    """Text of words. No copying: merges of random letters would split a string in one way here and in another there."""
    rng = random.Random(7)
    makers = [(task, share) for task, share in data.MIX if task is not tasks.copying]
    for _ in range(num_documents):
        make = rng.choices([task for task, _ in makers], [share for _, share in makers])[0]
        yield from (piece.text for piece in make(rng) if not piece.special)
    for _ in range(num_documents // 200):
        yield from (piece.text for piece in chat.preamble(tools.tool_set(rng)) if not piece.special)


def train(settings, num_merges, num_documents):
    """Merges of a byte-level BPE whose pieces hold no more than one digit."""
    split = [pre_tokenizers.Split(Regex(r'\p{N}'), 'isolated')]
    split += [
        pre_tokenizers.Split(Regex(step['pattern']['Regex']), 'isolated') for step in settings['pretokenizers'][1:3]
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=MIN_FREQUENCY,
    )
    tokenizer.train_from_iterator(plain_texts(num_documents), trainer)
    return json.loads(tokenizer.to_str())['model']


def build(config, num_documents):
    """The tokenizer.json: the special tokens first, then the 256 bytes and the merges."""
    source = released()
    special = named(source['added_tokens'])
    assert tuple(token['content'] for token in special[:3]) == FIRST
    model = train(source['pre_tokenizer'], config['text_config']['vocab_size'] - len(special) - 256, num_documents)
    offset = len(special)
    vocabulary = {token['content']: number for number, token in enumerate(special)}
    vocabulary |= {
        spelling: number + offset for spelling, number in sorted(model['vocab'].items(), key=lambda entry: entry[1])
    }
    source['added_tokens'] = [token | {'id': number} for number, token in enumerate(special)]
    source['model'] |= {'vocab': vocabulary, 'merges': model['merges']}
    return source


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--config', type=pathlib.Path, default=pathlib.Path(__file__).parent / 'nano_config.json')
    parser.add_argument('--out', required=True, type=pathlib.Path)
    parser.add_argument('--documents', type=int, default=NUM_DOCUMENTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    config = json.loads(options.config.read_text(encoding='utf-8'))
    tokenizer = build(config, options.documents)
    path = options.out / 'tokenizer.json'
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + '\n', encoding='utf-8')
    settings = {
        'add_bos_token': False,
        'add_eos_token': False,
        'bos_token': chat.BOS,
        'eos_token': chat.EOS,
        'pad_token': chat.PAD,
        'model_max_length': config['text_config']['max_position_embeddings'],
        'tokenizer_class': 'PreTrainedTokenizerFast',
    }
    (options.out / 'tokenizer_config.json').write_text(
        json.dumps(settings, ensure_ascii=False) + '\n', encoding='utf-8'
    )
    sys.path.insert(0, str(ROOT / 'tools'))
    from engram_classes import token_classes

    text = config['text_config']
    text['engram_compressed_vocab_size'] = max(token_classes(Tokenizer.from_file(str(path)), text['vocab_size'])) + 1
    text['dspark_noise_token_id'] = tokenizer['model']['vocab'][chat.SYSTEM]
    (options.out / 'config.json').write_text(json.dumps(config, indent=1) + '\n', encoding='utf-8')
    subprocess.run([sys.executable, ROOT / 'tools/engram_classes.py', options.out], check=True)


if __name__ == '__main__':
    main()
