"""Valid files of every kind that users bring, and what chance makes of them."""

import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image as Pillow

from tests.texts import HOSTILE
from tests.tuned import entry

Mutator = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
MAX_BYTES = 2**20
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

TEXT_TOKENS = (
    *(text.encode() for text in HOSTILE),
    *(b'"', b'""', b"'", b",", b"\t", b";", b"\r", b"\n", b"\r\n", b"\0", b"\\", b"\x1b[2J"),
    *(b"\xef\xbb\xbf", b"\xff", b"\xff\xfe", b"\xed\xa0\x80", "\x85\u2028".encode(), b"\x1c"),
    *(b"{", b"}", b"[" * 3000, b"]", b":", b"null", b"true", b"NaN", b"-Infinity", b"1e999"),
    *(b"-0", b"0x10", b"1_000", b"9007199254740993", b"18446744073709551616", b"9" * 5000),
    *(b"\\ud800", b"\\u0000", b"\\x", b'"prompt"', b'"prompt": "other", ', b"=1+1", b"x" * 5000),
    *(
        b"&a ",
        b"*a",
        b"<<: *a",
        b"!!int ",
        b"!!binary ",
        b"!!python/name:os ",
        b"- ",
        b"? ",
        b"|\n",
    ),
    *(b">\n", b"%YAML 9.9\n", b"---\n", b"...\n", b"# ", b"@", b"`", b"  ", b"2026-13-45", b"on"),
)
ODD_VALUES: tuple[object, ...] = (
    *(None, True, -1, 0, 10**400, 0.1, float("nan"), float("inf"), "", " ", "\0", "\x1b[31m"),
    *("x" * 5000, "s3://", "s3:///", "~nobody/x", "://", "[", "**", "{date}", "bundled:../../x"),
    *([], [[]], {}, {"id": {}}, {1: 2}, [None], ["a"] * 50, *HOSTILE),
)
# Cells that lead nowhere: none of them may be asked for over a network.
PLACES: tuple[bytes | None, ...] = (
    *(None, b"", b"\xff.png", b"\0", b".", b"none.png", b"/dev/zero", b"/proc/self/environ"),
    *(b"/" + b"x" * 300, b"file:///etc/passwd", b"s3://", b"s3:///a.png", b"s3://bucket/"),
    *(b"s3://bucket/a.png::file:///etc/passwd", b"http://169.254.169.254/latest", b"local:///a"),
)
TEMPLATE_PIECES = (
    *("a red ", "{{ place }}", "{{place}} ", "__x__", "__y/*__ ", "__!x__", "__~y/cold__", "\n"),
    *("{a|b}", "{2::a|1::b}", "{a|{b|c} d}", "{2$$a|b|c}", "{1-2$$ and $$a|b}", "{-2$$__x__}"),
    *("{!a|b}", "{~a|b}", "{a|}", "\\{x\\}", "\\_\\_x", "(cat:1.2) [a|b], ", "é 漢 ", "100% "),
)
TEMPLATE_TOKENS = (
    *(b"{{", b"}}", b"{", b"}", b"|", b"::", b"0::", b"-1::", b"1e9::", b"9.99::", b"$$", b"2$$"),
    *(b"{999999$$", b"-", b"__", b"__*__", b"__../x__", b"__/etc/passwd__", b"__z__", b"${", b"=!"),
    *(b"${v=!{a|b}}", b"${v}", b"${v=a}", b"${v:a}", b"%{a$$b}", b"{% for x in y %}", b"{@a|b}"),
    *(b"\\", b"#", b"\n#", b"{" * 40, b"}" * 40, b"{a|b}" * 30, b"__x__" * 300, b"{a|b|c|d}" * 99),
    *(b"\xff", b"\xef\xbb\xbf", b"\0", b"\r", "\u2028".encode(), b"x" * 21_000, b"{{ id }}"),
    *(b"{{ " + b"n" * 999 + b" }}", b"{a|a|a}", b"{2$${x}$$a|b}", b"__x(a=b)__"),
)
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63)


# Valid files.


def _table(dice: random.Random) -> pa.Table:
    rows = dice.choice([1, 3, 40, 700])
    prompts = [dice.choice([*HOSTILE, "a red circle", None, "", "é" * 300]) for _ in range(rows)]
    numbers = np.random.default_rng(dice.randrange(2**32)).integers(0, 2**40, rows)
    columns = {
        "prompt": pa.array(prompts).cast(dice.choice([pa.string(), pa.large_string()])),
        "id": [f"row-{number}" for number in range(rows)],
        "seed": pa.array(numbers).cast(dice.choice([pa.int64(), pa.uint64(), pa.float64()])),
        "steps": pa.array(numbers % 50 + 1).cast(dice.choice([pa.int8(), pa.string()])),
        "guidance": pa.array(numbers % 9 / 2).cast(dice.choice([pa.float64(), pa.float32()])),
        "tags": [[str(number)] * (number % 3) for number in range(rows)],
        "facts": [{"a": number, "b": "x"} for number in range(rows)],
    }
    table = pa.table(columns)
    if dice.random() < 0.2:
        images = _image_column(dice, rows)
        table = table.append_column("source_image", images)
    if dice.random() < 0.5:
        place = table.column_names.index("prompt")
        table = table.set_column(place, "prompt", table["prompt"].dictionary_encode())
    others = [name for name in table.column_names if name != "prompt"]
    return table.select(["prompt", *dice.sample(others, dice.randrange(len(others) + 1))])


def _image_column(dice: random.Random, rows: int) -> pa.Array:
    """Images as bytes, as names, or as structs of both."""
    files = [_image(dice) for _ in range(3)]
    changed = [dice.choice(BINARY_MUTATORS)(dice, file, files) for file in files]
    chosen = [dice.choice([*files, *changed, b"", None]) for _ in range(rows)]
    contents = pa.array(chosen, pa.binary())
    cells = [dice.choice(PLACES) for _ in range(rows)]
    names = pa.array(cells, pa.binary()).view(pa.string())
    struct = pa.StructArray.from_arrays([contents, names], ["bytes", "path"])
    columns = [contents, names, struct, contents.dictionary_encode(), names.dictionary_encode()]
    return dice.choice(columns)


def _parquet(dice: random.Random) -> bytes:
    sink = io.BytesIO()
    options: dict[str, object] = {
        "compression": dice.choice(["none", "snappy", "gzip", "zstd", "lz4"]),
        "use_dictionary": dice.random() < 0.5,
        "data_page_version": dice.choice(["1.0", "2.0"]),
        "write_page_checksum": dice.random() < 0.3,
        "write_page_index": dice.random() < 0.3,
        "store_schema": dice.random() < 0.7,
        "row_group_size": dice.choice([1, 100, 10_000]),
        "data_page_size": dice.choice([64, 2**20]),
    }
    pq.write_table(_table(dice), sink, **options)
    return sink.getvalue()


def _arrow(dice: random.Random) -> bytes:
    sink = io.BytesIO()
    table = _table(dice)
    options = pa.ipc.IpcWriteOptions(compression=dice.choice([None, "zstd", "lz4"]))
    opening = dice.choice([pa.ipc.new_stream, pa.ipc.new_file])
    with opening(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=dice.choice([1, 50, 10_000]))
    return sink.getvalue()


def _delimited(dice: random.Random, delimiter: str) -> bytes:
    lines = []
    for row in _text_rows(dice):
        cells = [str(value) for value in row.values()]
        quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
        is_plain = not any(set(cell) & {'"', delimiter, "\n", "\r"} for cell in cells)
        lines.append(delimiter.join(cells if is_plain else quoted))
    end = dice.choice(["\n", "\r\n", "\r"])
    return (delimiter.join(_text_rows(dice)[0]) + end + end.join(lines) + end).encode()


def _json_lines(dice: random.Random) -> bytes:
    ascii_only = dice.random() < 0.5
    return "".join(
        json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in _text_rows(dice)
    ).encode()


def _text_rows(dice: random.Random) -> list[dict[str, object]]:
    texts = [text for text in HOSTILE if text.strip()]
    return [
        {"prompt": dice.choice(texts), "id": number, "seed": dice.randrange(2**40), "tag": 0.5}
        for number in range(dice.choice([1, 5, 60]))
    ]


def _job_values() -> dict[str, object]:
    return {
        "name": "test",
        "prompts": ["p.parquet", "s3://bucket/{date}/*.csv"],
        "output": "out",
        "model": {"id": "bundled:shapes", "dtype": "float32", "loras": {"a": {"id": "org/b"}}},
        "columns": {"prompt": "caption"},
        "carry": ["tag", "other"],
        "defaults": {"steps": 4, "guidance": 2.5, "negative_prompt": "blur", "sampler": "euler"},
        "encoding": {"kind": "jpeg", "quality": 90},
        "gates": {"checks": [{"name": "x", "entry": "a:b"}]},
        "limits": {"rejected_share": 0.5},
        "prices": [{"gpu": "L4", "per_hour": 0.7}],
        "cluster": {"namespace": "imagekiln", "parallelism": 4},
    }


def _recipe_values() -> dict[str, object]:
    """A job whose prompts are made and rewritten, and whose images compete."""
    return {
        "name": "test",
        "prompts": {
            "template": ["a {red|blue} __animal__", "{{ place }} at night"],
            "negative_template": "{blurry|}, low quality",
            "table": "places.csv",
            "wildcards": "s3://bucket/wildcards/",
            "combinations": 20,
            "sweep": {
                "seed": [1, 2],
                "guidance": [2.5, 5],
                "steps": [4, 8],
                "sampler": ["euler"],
                "loras": ["", "a:0.4"],
            },
        },
        "rewrite": {
            "model": {"id": "org/model", "revision": "main", "dtype": "bfloat16"},
            "instruction": "Describe {prompt}",
            "append": True,
            "temperature": 0.5,
            "seed": 7,
        },
        "scores": {
            "clip": {"kind": "clip_score", "id": "org/clip", "min": 20, "share": 0.5},
            "nsfw": {"kind": "classifier", "id": "org/nsfw", "label": "nsfw", "max": 0.5},
            "reward": {"kind": "reward", "id": "org/pick", "processor": {"id": "org/clip"}},
            "taste": {"kind": "aesthetic", "id": "org/clip", "head": "head.safetensors"},
            "own": {"kind": "own", "entry": "package.module:name"},
        },
        "keep": {"of": 4, "by": "clip", "losers": "keep"},
        "output": "out",
        "model": {"id": "bundled:shapes", "loras": {"a": {"id": "org/b"}}},
    }


def _template(dice: random.Random) -> bytes:
    pieces = dice.choices(TEMPLATE_PIECES, k=dice.choice([1, 2, 4, 8]))
    if dice.random() < 0.2:
        pieces = ["${v=!{a|b|c}}", *pieces, "${v}"]
    return "".join(pieces).encode()


def _wildcards(dice: random.Random) -> bytes:
    lines = []
    for number in range(dice.choice([1, 3, 20, 300])):
        weight = dice.choice(["", "", "", "2::", "0.5::", "0::"])
        lines.append(f"{weight}line {number} {dice.choice(TEMPLATE_PIECES).strip()}")
    lines.insert(dice.randrange(len(lines) + 1), dice.choice(["# a comment", "", "plain"]))
    return dice.choice(["\n", "\r\n"]).join(lines).encode()


def _yaml_of(values: object) -> Callable[[random.Random], bytes]:
    def write(dice: random.Random) -> bytes:
        changed = json.loads(json.dumps(values))
        for _ in range(dice.choice([0, 0, 1, 2])):
            _change_tree(dice, changed)
        return yaml.safe_dump(changed, sort_keys=False, allow_unicode=dice.random() < 0.5).encode(
            errors="surrogatepass"
        )

    return write


def _change_tree(dice: random.Random, tree: object) -> None:
    """Replace, remove, or add one value somewhere in a tree of lists and dicts."""
    while isinstance(tree, dict | list) and tree:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = dice.choice(keys)
        inner = tree[key]
        if isinstance(inner, dict | list) and inner and dice.random() < 0.7:
            tree = inner
            continue
        if dice.random() < 0.2:
            del tree[key]
        elif dice.random() < 0.3 and isinstance(tree, dict):
            tree[str(dice.choice(ODD_VALUES))] = inner
        else:
            tree[key] = dice.choice(ODD_VALUES)
        return


def _image(dice: random.Random) -> bytes:
    sink = io.BytesIO()
    side = dice.choice([1, 7, 64])
    pixels = np.random.default_rng(dice.randrange(2**32)).integers(0, 256, (side, side, 3))
    image = Pillow.fromarray(pixels.astype(np.uint8))
    kind = dice.choice(["PNG", "JPEG", "WEBP"])
    modes = {"PNG": ["RGB", "RGBA", "P", "L", "LA", "1", "I;16"], "JPEG": ["RGB", "L", "CMYK"]}
    mode = dice.choice(modes.get(kind, ["RGB", "RGBA"]))
    if mode == "I;16":
        image = Pillow.fromarray(pixels[..., 0].astype(np.uint16) * np.uint16(257))
    else:
        image = image.convert(mode)
    options: dict[str, object] = {}
    if dice.random() < 0.5:
        exif = Pillow.Exif()
        exif[0x0112] = dice.randrange(12)
        exif[0x010E] = dice.choice(HOSTILE)
        options["exif"] = exif
    if kind != "JPEG" and mode in ("RGB", "RGBA") and dice.random() < 0.3:
        options |= {"save_all": True, "append_images": [image.rotate(90)]}
    if kind == "JPEG" and dice.random() < 0.5:
        options["progressive"] = True
    image.save(sink, kind, **options)
    return sink.getvalue()


MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": lambda dice: _delimited(dice, ","),
    "tsv": lambda dice: _delimited(dice, "\t"),
    "jsonl": _json_lines,
    "job": _yaml_of(_job_values()),
    "prices": _yaml_of({"prices": [{"gpu": "NVIDIA L4", "per_hour": 0.7, "spot": True}] * 2}),
    "tuning": _yaml_of({"version": 1, "entries": [entry().model_dump(mode="json")]}),
    "image": _image,
    "recipe": _yaml_of(_recipe_values()),
    "template": _template,
    "wildcards": _wildcards,
}
TEMPLATES = {"template", "wildcards"}
TEXTS = {"csv", "tsv", "jsonl", "job", "prices", "tuning", "recipe", *TEMPLATES}


# Mutations.


def _place(dice: random.Random, content: bytes) -> int:
    """A place anywhere, or in the first or last bytes, where formats keep what they say of all."""
    if not content:
        return 0
    reach = dice.choice([len(content), 64, 1024])
    place = dice.randrange(min(reach, len(content)))
    return place if dice.random() < 0.5 else len(content) - 1 - place


def _flip(dice: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(content)
    for _number in range(dice.choice([1, 1, 1, 4, 32])):
        if changed:
            changed[_place(dice, content)] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _write_edge(dice: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    place = _place(dice, content)
    size = dice.choice([1, 2, 4, 8])
    edge = dice.choice(EDGES) % (1 << 8 * size)
    number = edge.to_bytes(size, dice.choice(["little", "big"]))
    return content[:place] + number + content[place + size :]


def _truncate(dice: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    return content[: _place(dice, content)]


def _remove(dice: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    place = _place(dice, content)
    return content[:place] + content[place + dice.choice([1, 4, 100]) :]


def _repeat(dice: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    start = _place(dice, content)
    piece = content[start : start + dice.choice([1, 8, 200])]
    return content[:start] + piece * dice.choice([2, 10, 1000]) + content[start:]


def _splice(dice: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    other = dice.choice(others)
    return content[: _place(dice, content)] + other[_place(dice, other) :]


def _insert_token(dice: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    for _number in range(dice.choice([1, 1, 2, 5])):
        place = _place(dice, content)
        token = dice.choice(TEXT_TOKENS)
        content = content[:place] + token + content[place + dice.choice([0, 0, len(token)]) :]
    return content


def _insert_template_token(dice: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    for _number in range(dice.choice([1, 1, 2, 5])):
        place = _place(dice, content)
        content = content[:place] + dice.choice(TEMPLATE_TOKENS) + content[place:]
    return content


def _move_lines(dice: random.Random, content: bytes, _: Sequence[bytes]) -> bytes:
    lines = content.splitlines(keepends=True)
    dice.shuffle(lines)
    return b"".join(lines[: dice.randrange(len(lines) + 1)] if dice.random() < 0.3 else lines)


def _change_png_chunk(dice: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """A PNG with one chunk changed and its checksum right, so that its content is looked at."""
    if not content.startswith(PNG_SIGNATURE):
        return _flip(dice, content, others)
    chunks = []
    place = len(PNG_SIGNATURE)
    while place + 12 <= len(content):
        (size,) = struct.unpack_from(">I", content, place)
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + size]))
        place += 12 + size
    if not chunks:
        return _flip(dice, content, others)
    number = dice.randrange(len(chunks))
    kind, body = chunks[number]
    names = [b"eXIf", b"iCCP", b"zTXt", b"iTXt", b"tRNS", b"PLTE", b"acTL", b"fcTL", b"gAMA", kind]
    kind = dice.choice(names)
    mutate = dice.choice([_flip, _write_edge, _truncate, _repeat])
    changed = (kind, mutate(dice, body, others))
    chunks[number : number + dice.randrange(2)] = [changed]
    return PNG_SIGNATURE + b"".join(png_chunk(name, data) for name, data in chunks)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of a PNG with the right length and checksum."""
    checksum = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)


BINARY_MUTATORS: tuple[Mutator, ...] = (
    *(_flip, _flip, _flip, _write_edge, _write_edge, _truncate, _remove, _repeat, _splice),
)
TEXT_MUTATORS: tuple[Mutator, ...] = (
    *(_insert_token, _insert_token, _insert_token, _move_lines, _flip, _truncate, _remove),
    *(_repeat, _splice),
)


def make_file(kind: str, dice: random.Random) -> bytes:
    """A valid file of a kind, mostly with mutations."""
    content = MAKERS[kind](dice)
    others = [MAKERS[kind](dice), MAKERS[dice.choice(list(MAKERS))](dice)]
    mutators = TEXT_MUTATORS if kind in TEXTS else BINARY_MUTATORS
    if kind in TEMPLATES:
        mutators = (*mutators, *[_insert_template_token] * 4)
    if kind == "image":
        mutators = (*mutators, _change_png_chunk, _change_png_chunk, _change_png_chunk)
    for _ in range(dice.choice([0, 1, 1, 1, 1, 2, 3])):
        content = dice.choice(mutators)(dice, content, others)
    return content[:MAX_BYTES]
