#!/usr/bin/env python3
"""Makes a checkpoint folder in the released format from the weights that train.py left: copies the shards and the
index, and adds config.json, generation_config.json, the tokenizer's files, the token classes and rendered prompts to
try. `monostep inspect FOLDER` checks it; `monostep generate --model FOLDER --prompt-file FOLDER/prompts/NAME`
answers.
usage: export.py --weights FOLDER --out FOLDER [--config FILE]"""

import argparse
import json
import pathlib
import shutil

import chat
from geometry import load_geometry

HERE = pathlib.Path(__file__).resolve().parent
GENERATION = {
    'bos_token_id': 0,
    'eos_token_id': 1,
    'pad_token_id': 2,
    'do_sample': False,
    'temperature': 0.0,
    'max_new_tokens': 512,
}
WEATHER = {
    'name': 'get_weather',
    'description': 'Get a weather.',
    'parameters': {
        'type': 'object',
        'properties': {
            'city': {'type': 'string', 'description': 'Name of the city'},
            'days': {'type': 'integer', 'description': 'Number of days'},
            'options': {'type': 'object', 'description': 'Options'},
        },
        'required': ['city'],
    },
}
PROBLEM = 'Nora has 3 boxes with 12 pencils in each. Then Nora gives 7 to Tom. How many pencils are left?'
MAX_BYTES, MAX_SHARD_BYTES = 40 * 2**20, 16 * 2**20


def copy_weights(weights, out):
    index = weights / 'model.safetensors.index.json'
    shards = sorted(set(json.loads(index.read_text(encoding='utf-8'))['weight_map'].values()))
    for old in out.glob('model-*.safetensors'):
        old.unlink()
    for name in [*shards, index.name]:
        shutil.copyfile(weights / name, out / name)
    sizes = [(out / name).stat().st_size for name in shards]
    assert max(sizes) <= MAX_SHARD_BYTES and sum(sizes) <= MAX_BYTES, f'shards of {sizes} bytes'
    return sizes


def prompts():
    """{file name: rendered conversation that waits for an answer}."""
    ask = [{'role': 'user', 'content': PROBLEM}]
    call = [
        {
            'role': 'user',
            'content': 'Please call get_weather with city Oslo, days = 3, options is {"wind": true, "rain": 5}.',
        }
    ]
    return {
        'word_problem.txt': chat.render(ask),
        'word_problem_thinking.txt': chat.render(ask, thinking=True),
        'tool_call.txt': chat.render(call, tools=[WEATHER]),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--weights', required=True, type=pathlib.Path)
    parser.add_argument('--out', required=True, type=pathlib.Path)
    parser.add_argument('--config', type=pathlib.Path, default=HERE / 'tokenizer/config.json')
    parser.add_argument('--tokenizer', type=pathlib.Path, default=HERE / 'tokenizer')
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = copy_weights(options.weights, options.out)
    shutil.copyfile(options.config, options.out / 'config.json')
    for name in ('tokenizer.json', 'tokenizer_config.json', 'token_classes.safetensors'):
        shutil.copyfile(options.tokenizer / name, options.out / name)
    (options.out / 'generation_config.json').write_text(json.dumps(GENERATION, indent=1) + '\n', encoding='utf-8')
    (options.out / 'prompts').mkdir(exist_ok=True)
    for name, pieces in prompts().items():
        (options.out / 'prompts' / name).write_text(chat.text_of(pieces), encoding='utf-8')
    print(
        f'{options.out}: {load_geometry(options.out).num_hidden_layers} layers, {len(sizes)} shards, '
        f'{sum(sizes) / 2**20:.1f} MiB'
    )


if __name__ == '__main__':
    main()
