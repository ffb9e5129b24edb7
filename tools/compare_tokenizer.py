#!/usr/bin/env python3
# Encodes the corpus of tools/make_corpus.py with the official library (PyPI tokenizers) and with `monostep tokenize`, compares
# every id, decodes the ids again, and prints counts and speeds. Exit code 1 where anything differs. Called by scripts/test.
# usage: compare_tokenizer.py --monostep PROGRAM [--tokenizer FILE(.gz)] [--bytes N] [--seed N]
import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import make_corpus  # noqa: E402

RECORDED = pathlib.Path(__file__).resolve().parent.parent / 'tests/golden/tokenizer/tokenizer.json.gz'


def official_encoders(file_text):
    """By "special": the library as it is, and with no added tokens, so that all text is plain."""
    plain = json.loads(file_text)
    plain['added_tokens'] = []
    return {True: tokenizers.Tokenizer.from_str(file_text), False: tokenizers.Tokenizer.from_str(json.dumps(plain))}


def run_monostep(program, tokenizer_path, requests):
    """The answers to some requests, and the seconds the program ran."""
    lines = ''.join(json.dumps(request) + '\n' for request in requests)
    start = time.perf_counter()
    done = subprocess.run([program, 'tokenize', '--tokenizer', tokenizer_path], input=lines.encode(), capture_output=True,
                          check=True)
    seconds = time.perf_counter() - start
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if len(answers) != len(requests):
        sys.exit(f'{len(requests)} requests, {len(answers)} answers')
    return answers, seconds


def compare(requests, wanted_ids, answers, decoded):
    """Prints the first differences and returns their number."""
    num_different = 0
    for request, wanted, answer, back in zip(requests, wanted_ids, answers, decoded):
        if answer.get('ids') != wanted:
            num_different += 1
            if num_different <= 5:
                print('DIFFERENT', json.dumps(request)[:300], 'wanted', wanted[:40], 'found', str(answer)[:300])
        elif back.get('text') != request['text'] or bytes.fromhex(back['bytes_hex']) != request['text'].encode():
            num_different += 1
            print('NOT DECODED', json.dumps(request)[:300], str(back)[:300])
    return num_different


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--monostep', required=True)
    parser.add_argument('--tokenizer', default=str(RECORDED))
    parser.add_argument('--bytes', type=int, default=5_500_000)
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()

    opener = gzip.open if options.tokenizer.endswith('.gz') else open
    with opener(options.tokenizer, 'rb') as file:
        file_bytes = file.read()
    requests = list(make_corpus.documents(options.seed, options.bytes))
    encoders = official_encoders(file_bytes.decode())
    start = time.perf_counter()
    wanted_ids = [encoders[request['special']].encode(request['text'], add_special_tokens=False).ids for request in requests]
    official_seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'tokenizer.json'
        path.write_bytes(file_bytes)
        _, load_seconds = run_monostep(options.monostep, str(path), [])
        answers, seconds = run_monostep(options.monostep, str(path), requests)
        decoded, _ = run_monostep(options.monostep, str(path), [{'ids': ids} for ids in wanted_ids])

    num_different = compare(requests, wanted_ids, answers, decoded)
    megabytes = sum(len(request['text'].encode()) for request in requests) / 1e6
    print(f'{len(requests)} texts, {megabytes:.2f} MB, {sum(map(len, wanted_ids))} ids, {num_different} texts differ; '
          f'official {megabytes / official_seconds:.1f} MB/s; monostep {megabytes / (seconds - load_seconds):.1f} MB/s '
          f'with JSON both ways, load {load_seconds * 1e3:.0f} ms')
    return 1 if num_different else 0


if __name__ == '__main__':
    sys.exit(main())
