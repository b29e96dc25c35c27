"""Compares Sluice's tokenizers with the packages that own their files, over megabytes of text, and times both in the same run.

    pip install tokenizers sentencepiece tiktoken protobuf gguf
    python3 tests/oracle/compare_tokenizers.py TOKENIZE FOLDER [--time] [tokenizer files …]

TOKENIZE is the program bench/tokenize.cpp (cmake --preset bench). FOLDER keeps what the script makes: corpus.jsonl, at least 5 MB of Python's own library,
text in some thirty scripts, emoji, control characters and long words; and tokenizers trained on it, one for each kind. Further files are compared as well:
tokenizer.json with tokenizers, *.model with sentencepiece. One row for each: documents whose ids differ, whose
offsets do not hold those of the package (and how many tokens have other offsets at all), whose decoded text differs.
--time: megabytes a second, the fastest of five passes, Sluice and the package one after the other, with one thread and two.
"""
import json
import os
import random
import struct
import subprocess
import sys
import sysconfig
import time
import unicodedata
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, os.path.dirname(__file__))
import make_tokenizer_golden as golden  # noqa: E402
import sentencepiece  # noqa: E402
from tokenizer_corpus import corpus  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def library_sources(num_bytes):
    texts, size = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(errors="ignore")
        texts.append(text)
        size += len(text.encode())
        if size >= num_bytes:
            break
    return texts


def strange(r):
    """Control characters, every kind of space, private and unassigned characters, marks on marks, long words."""
    kind = r.randrange(5)
    if kind == 0:
        return "".join(chr(r.randrange(1, 0x300)) for _ in range(r.randrange(1, 200)))
    if kind == 1:
        return "".join(r.choice([" ", "\t", "\n", "\r", "\u00a0", "\u2003", "\u3000", "\u200b", "\ufeff", "\x00", "\x1b", "\ufffd", "\ue000", "x"])
                       for _ in range(r.randrange(1, 120)))
    if kind == 2:
        return "".join(chr(c) for c in (r.randrange(0x20, 0x1FB00) for _ in range(200)) if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn")
    if kind == 3:
        return "e" + "".join(chr(r.randrange(0x300, 0x370)) for _ in range(r.randrange(1, 40))) + " ".join("aeiou") + "ﬁ①㍿ｶﾞ"
    return r.choice(["a", "ab", "字", "ا", " ", "▁", "é", "0", "=-", "\u0301"]) * r.randrange(500, 4000)


def make_corpus():
    r = random.Random(7)
    return library_sources(3_200_000) + corpus(2_200_000, seed=11) + [strange(r) for _ in range(500)]


def save_all(folder, documents):
    """A tokenizer of every kind."""
    sample = documents[::2]
    models = {name: golden.sentencepiece_model(sample, 8000, max_sentence_length=20000, **o) for name, o in golden.SENTENCEPIECE.items()}
    for name, model in models.items():
        (folder / f"{name}.model").write_bytes(model)
    made = {**golden.byte_level_tokenizers(sample), **golden.piece_tokenizers(sample), **golden.word_tokenizers(sample, golden.charsmap_of(models["sp_unigram"]))}
    for name, t in made.items():
        t.save(str(folder / f"{name}.tokenizer.json"), pretty=False)
    for name, (text, _) in golden.tiktoken_files(sample, 8000).items():
        (folder / f"{name}.small.tiktoken").write_text(text)


class Judge:
    """One file with the package that owns it."""

    def __init__(self, path):
        self.path, self.kind = path, "tokenizers"
        if path.suffix == ".model":
            self.kind, self.p = "sentencepiece", sentencepiece.SentencePieceProcessor(model_file=str(path))
        elif path.suffix == ".tiktoken":
            import base64
            self.kind, self.name = "tiktoken", path.name.split(".")[0]
            ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in path.read_text().splitlines())}
            self.p = golden.tiktoken_encoding(self.name, ranks)
        else:
            self.p = Tokenizer.from_file(str(path))

    def rows(self, documents):
        """(ids, offsets in characters or None, decoded text) of each document."""
        if self.kind == "tiktoken":
            return [(ids, None, text) for ids, text in golden.tiktoken_rows(self.name, self.p, documents)]
        if self.kind == "sentencepiece":
            pieces = [self.p.encode(d, return_type="proto").pieces for d in documents]
            return [([x.id for x in p], [(x.begin, x.end) for x in p], self.p.decode([x.id for x in p]).encode()) for p in pieces]
        encoded = [self.p.encode(d, add_special_tokens=False) for d in documents]
        return [(e.ids, e.offsets, self.p.decode(e.ids, skip_special_tokens=False).encode()) for e in encoded]

    def seconds(self, documents, threads):
        def one_pass():
            if self.kind == "sentencepiece":
                self.p.encode(documents, num_threads=threads)
            elif self.kind == "tiktoken":
                self.p.encode_ordinary_batch(documents, num_threads=threads)
            elif threads == 1:
                for d in documents:
                    self.p.encode(d, add_special_tokens=False)
            else:
                self.p.encode_batch_fast(documents, add_special_tokens=False)
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            one_pass()
            best = min(best, time.perf_counter() - begin)
        return best


def ours(program, path, corpus_file, out):
    subprocess.run([program, path, corpus_file, "dump", out], check=True)
    data, at = Path(out).read_bytes(), 0
    while at < len(data):
        (n,) = struct.unpack_from("<i", data, at)
        numbers = struct.unpack_from(f"<{3 * n}i", data, at + 4)
        at += 4 + 12 * n
        (size,) = struct.unpack_from("<i", data, at)
        yield list(numbers[:n]), list(zip(numbers[n:2 * n], numbers[2 * n:])), data[at + 4:at + 4 + size]
        at += 4 + size


def in_characters(offsets, text):
    """Byte offsets as offsets of whole characters around them."""
    data = text.encode()
    index, count = [], 0
    for b in data:
        count += (b & 0xC0) != 0x80
        index.append(count - 1)
    index.append(count)
    return [(index[b], index[e - 1] + 1 if e > b else index[b]) for b, e in offsets]


def holds(outer, inner):
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def compare(program, path, documents, corpus_file, folder):
    judge = Judge(path)
    wrong, examples, tokens, different = [0, 0, 0], [], 0, 0
    for i, (mine, theirs) in enumerate(zip(ours(program, path, corpus_file, folder / "ours.bin"), judge.rows(documents))):
        tokens += len(theirs[0])
        if mine[0] != theirs[0]:
            wrong[0] += 1
            examples.append(i)
        elif theirs[1] is not None:
            spans = mine[1] if judge.kind == "sentencepiece" else in_characters(mine[1], documents[i])
            # A token of a changed stretch may have all of the stretch; a space put in front has nothing; each of the tokens of a character's
            # bytes has its byte, where SentencePiece gives the last of them the character and the others nothing.
            here = sum(not holds(a, b) and not holds(b, a) and b[0] != b[1] for a, b in zip(spans, theirs[1]))
            different += sum(tuple(a) != tuple(b) for a, b in zip(spans, theirs[1]))
            wrong[1] += here > 0
        wrong[2] += mine[2].decode(errors="replace") != theirs[2].decode(errors="replace")
    print(f"| {path.name} | {judge.kind} | {len(documents)} | {tokens} | {wrong[0]} | {wrong[1]} ({different}) | {wrong[2]} | {examples[:5]}", flush=True)


def measure(program, path, documents, corpus_file):
    size, judge, cells = sum(len(d.encode()) for d in documents) / 1e6, Judge(path), []
    for threads in (1, 2):
        os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"] = str(threads), "true" if threads > 1 else "false"
        mine = float(subprocess.run([program, path, corpus_file, "time", str(threads)], check=True, capture_output=True, text=True).stdout)
        cells += [f"{size / mine:.1f}", f"{size / judge.seconds(documents, threads):.1f}"]
    print(f"| {path.name} | {judge.kind} | " + " | ".join(cells) + " |", flush=True)


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    program, folder, further = arguments[0], Path(arguments[1]), [Path(a) for a in arguments[2:]]
    folder.mkdir(parents=True, exist_ok=True)
    corpus_file = folder / "corpus.jsonl"
    if not corpus_file.exists():
        documents = make_corpus()
        corpus_file.write_text("".join(json.dumps(d) + "\n" for d in documents))
        save_all(folder, documents)
    documents = [json.loads(line) for line in corpus_file.read_text().splitlines()]
    files = further or sorted([*folder.glob("*.tokenizer.json"), *folder.glob("*.model"), *folder.glob("*.tiktoken")])
    print(f"{len(documents)} documents, {sum(len(d.encode()) for d in documents) / 1e6:.2f} MB")
    for path in files:
        if "--time" in sys.argv:
            measure(program, path, documents, corpus_file)
        else:
            compare(program, path, documents, corpus_file, folder)


if __name__ == "__main__":
    main()
