#!/usr/bin/env python3
# Makes token_classes.safetensors of a checkpoint folder from its tokenizer.json and config.json: the class of every token id
# for the Engram hash. Needs the tokenizers library (pip install tokenizers). Run by hand for a tokenizer that the program has no
# table of; the loader's message names it.
import argparse
import json
import pathlib
import struct
import sys

from tokenizers import Regex, Tokenizer, normalizers

SPACE = '\ue000'  # stands for a lone space while outer whitespace is stripped

NORMALIZER = normalizers.Sequence([
    normalizers.NFKC(),
    normalizers.NFD(),
    normalizers.StripAccents(),
    normalizers.Lowercase(),
    normalizers.Replace(Regex(r'[ \t\r\n]+'), ' '),
    normalizers.Replace(Regex(r'^ $'), SPACE),
    normalizers.Strip(),
    normalizers.Replace(SPACE, ' '),
])


def class_key(tokenizer, token_id):
    """Ids with one key share a class. An incomplete character keeps the token's own spelling."""
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    if '\ufffd' in text:
        return tokenizer.id_to_token(token_id)
    return NORMALIZER.normalize_str(text) or text


def token_classes(tokenizer, vocab_size):
    """Class numbers in the order in which new keys appear."""
    numbers = {}
    return [numbers.setdefault(class_key(tokenizer, token_id), len(numbers)) for token_id in range(vocab_size)]


def safetensors_bytes(classes):
    entry = {'dtype': 'I32', 'shape': [len(classes)], 'data_offsets': [0, 4 * len(classes)]}
    header = json.dumps({'token_classes': entry}, separators=(',', ':')).encode()
    header += b' ' * (-len(header) % 8)
    return struct.pack('<Q', len(header)) + header + struct.pack(f'<{len(classes)}i', *classes)


def main():
    parser = argparse.ArgumentParser(description='Makes token_classes.safetensors of a checkpoint folder.')
    parser.add_argument('dir', type=pathlib.Path, help='folder with tokenizer.json and config.json')
    folder = parser.parse_args().dir
    config = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
    config = config.get('text_config', config)
    classes = token_classes(Tokenizer.from_file(str(folder / 'tokenizer.json')), config['vocab_size'])
    expected = config['engram_compressed_vocab_size']
    if max(classes) + 1 != expected:
        sys.exit(f'engram_classes.py: expected {expected} classes as config.json says, found {max(classes) + 1}')
    (folder / 'token_classes.safetensors').write_bytes(safetensors_bytes(classes))
    print(f'{folder / "token_classes.safetensors"}: {len(classes)} ids in {expected} classes')


if __name__ == '__main__':
    main()
