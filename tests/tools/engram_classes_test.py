#!/usr/bin/env python3
# Tests of tools/engram_classes.py: on the released tokenizer it gives the table that the program embeds, and a config with
# another number of classes is refused. Needs the tokenizers library.
import gzip
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / 'tools' / 'engram_classes.py'


def run_tool(folder, num_classes):
    """Runs the tool on the released tokenizer with a config that asks for this number of classes."""
    tokenizer = gzip.decompress((ROOT / 'tests/golden/tokenizer/tokenizer.json.gz').read_bytes())
    (folder / 'tokenizer.json').write_bytes(tokenizer)
    config = {'text_config': {'vocab_size': 129280, 'engram_compressed_vocab_size': num_classes}}
    (folder / 'config.json').write_text(json.dumps(config), encoding='utf-8')
    return subprocess.run([sys.executable, TOOL, folder], capture_output=True, text=True, check=False)


class EngramClassesTest(unittest.TestCase):

    def test_the_released_tokenizer_gives_the_embedded_table(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.assertEqual(run_tool(folder, 99092).returncode, 0)
            written = (folder / 'token_classes.safetensors').read_bytes()
        embedded = gzip.decompress((ROOT / 'src/weights/data/engram_class_map.i32.gz').read_bytes())
        header_bytes = struct.unpack('<Q', written[:8])[0]
        header = json.loads(written[8:8 + header_bytes])
        self.assertEqual(header['token_classes']['shape'], [129280])
        self.assertEqual(header['token_classes']['dtype'], 'I32')
        self.assertTrue(written[8 + header_bytes:] == embedded)

    def test_another_number_of_classes_is_refused_and_nothing_written(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            run = run_tool(folder, 99093)
            self.assertEqual(run.returncode, 1)
            self.assertIn('expected 99093 classes as config.json says, found 99092', run.stderr)
            self.assertFalse((folder / 'token_classes.safetensors').exists())


if __name__ == '__main__':
    unittest.main()
