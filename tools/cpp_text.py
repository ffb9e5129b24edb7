# A light reading of C++ text for check_tree.py: comments and literals blanked, and the functions with their lengths.
# Not a parser: it follows quotes, comments and braces, which clang-format's layout makes reliable enough.
import re

LEXEME = re.compile(
    r'//[^\n]*'
    r'|/\*.*?\*/'
    r'|R"(?P<delimiter>[^\s()\\]{0,16})\(.*?\)(?P=delimiter)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL)
TYPE_OR_NAMESPACE = re.compile(r'(inline\s+)?namespace\b|extern\s*$|(typedef\s+)?(struct|class|union|enum)\b')
ACCESS = re.compile(r'\b(public|private|protected)\s*:(?!:)')


def blank(text):
    """The text with the same lines, but spaces for everything else."""
    return re.sub(r'[^\n]', ' ', text)


def code_only(text):
    """C++ text without comments, the insides of literals, and preprocessor lines; line numbers stay."""
    text = LEXEME.sub(lambda found: blank(found.group()), text)
    return re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', lambda found: blank(found.group()), text, flags=re.MULTILINE)


def without_nested(header, opening, closing):
    """The header without what stands inside the given brackets."""
    depth, kept = 0, []
    for char in header:
        depth -= char == closing
        if depth <= 0 and char != closing and char != opening:
            kept.append(char)
        depth += char == opening
    return ''.join(kept)


def classify(header):
    """What a brace opens after this text: 'scope' (namespace or type), 'function', 'member_init' or 'other'."""
    header = ACCESS.sub(' ', header)
    header = re.sub(r'\[\[[^\]]*\]\]', ' ', header).strip()
    if header.startswith('template'):
        header = without_nested(header, '<', '>').removeprefix('template').strip()
    if TYPE_OR_NAMESPACE.match(header):
        return 'scope'
    outside = without_nested(header, '(', ')').replace('::', '')
    if '(' not in header or ('=' in outside and 'operator' not in outside):
        return 'other'
    if ':' in outside and re.search(r'[\w>]$', header):
        return 'member_init'
    return 'function'


def closing_brace(code, at):
    depth = 0
    for position in range(at, len(code)):
        depth += {'{': 1, '}': -1}.get(code[position], 0)
        if depth == 0:
            return position
    return len(code)


def functions(text):
    """(name, first line, number of lines) of every function body, lambdas and local types counted inside their function."""
    code = code_only(text)
    found, start, position = [], 0, 0
    while position < len(code):
        char = code[position]
        if char in ';}':
            start = position + 1
        elif char == '{':
            header = code[start:position]
            kind = classify(header)
            if kind != 'scope':
                end = closing_brace(code, position)
                if kind == 'function':
                    found.append(describe(code, header, position, end))
                position = end
            if kind != 'member_init':
                start = position + 1
        position += 1
    return found


def describe(code, header, opening, closing):
    named = re.search(r'([~\w:]+|operator\s*\S+?)\s*\(', header)
    first_line = code.count('\n', 0, opening) + 1
    last_line = code.count('\n', 0, closing) + 1
    return (named.group(1) if named else '?', first_line, last_line - first_line + 1)
