#!/usr/bin/env python3
"""The whole path at a toy size on the CPU, in a minute: two steps of training, one of each later stage, export, and
the program reads the checkpoint (`inspect`) and generates from it. Exit code 1 where a part fails, where a damaged
checkpoint passes, or where training shows a wording of the test.
usage: smoke_test.py --monostep PROGRAM"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import engram
import wordings
from geometry import Geometry

HERE = pathlib.Path(__file__).resolve().parent
TOY = {
    'hidden_size': 64,
    'head_dim': 32,
    'num_attention_heads': 4,
    'q_lora_rank': 32,
    'o_lora_rank': 32,
    'o_groups': 2,
    'moe_intermediate_size': 32,
    'n_routed_experts': 4,
    'num_experts_per_tok': 2,
    'index_head_dim': 32,
    'sliding_window': 32,
    'index_topk': 16,
    'candidate_topk_blocks': 8,
    'candidate_block_size': 4,
    'dspark_n_routed_experts': 4,
    'engram_vocab_size': 512,
    'dspark_markov_rank': 32,
}


def toy_config(path):
    config = json.loads((HERE / 'tokenizer/config.json').read_text(encoding='utf-8'))
    config['text_config'] |= TOY
    rows = [rows for _, _, rows in engram.tables(Geometry(json.loads(json.dumps(config))))]
    config['text_config']['engram_num_embeddings'] = rows
    path.write_text(json.dumps(config), encoding='utf-8')


def run(*command, fails=False):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {'OMP_NUM_THREADS': '1'},
    )
    if (done.returncode != 0) != fails:
        sys.exit(f'smoke_test.py: {" ".join(map(str, command))}\n{done.stdout}{done.stderr}')
    return done.stdout


def check_wordings():
    """No wording of the test is shown in training, with or without an opener; the check finds one that is."""
    shown = wordings.shown_in_training()
    wordings.HELD_OUT['gain'].append('Later ' + wordings.TRAINING['gain'][0])
    if shown or len(wordings.shown_in_training()) != 1:
        sys.exit(f'smoke_test.py: held-out wordings in training: {shown}')
    wordings.HELD_OUT['gain'].pop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--monostep', required=True)
    program = parser.parse_args().monostep
    check_wordings()
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        config, state, weights, model = work / 'toy.json', work / 'state.pt', work / 'weights', work / 'model'
        toy_config(config)
        sizes = '--length 160 --rows 1 --log-every 1'.split()
        common = [*sizes, '--config', config, '--state', state, '--out', weights]
        for stage, steps in (('pretrain', 2), ('long', 1), ('draft', 1)):
            train = [sys.executable, HERE / 'train.py', '--stage', stage, '--steps', steps]
            print(run(*train, *common), end='')
        print(run(sys.executable, HERE / 'export.py', '--weights', weights, '--out', model, '--config', config), end='')
        print(run(program, 'inspect', model).splitlines()[-1])
        print(run(program, 'generate', '--model', model, '--prompt', 'What is 2 + 2?', '-n', 8, '--json'), end='')
        shard = next(model.glob('*.safetensors'))
        shard.write_bytes(shard.read_bytes()[:-1])
        run(program, 'inspect', model, fails=True)
    print('smoke test: ok')


if __name__ == '__main__':
    main()
