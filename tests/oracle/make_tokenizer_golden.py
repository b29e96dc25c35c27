"""Golden data for src/text: what Hugging Face tokenizers, SentencePiece and llama.cpp make of the same text. No code of Sluice takes part.

    pip install tokenizers sentencepiece tiktoken protobuf gguf llama-cpp-python jinja2
    python3 tests/oracle/make_tokenizer_golden.py [path of SmolLM2-135M-Instruct.Q4_1.gguf]

Writes tests/golden/tokenizer/:
    corpus.jsonl               a JSON string a line (tokenizer_corpus.py)
    <name>.tokenizer.json      small tokenizers trained on the corpus, one for each construction that model families use; one that is there is kept,
                               since training breaks ties by chance
    <name>.vocabulary.json     the same as the arrays of a GGUF file: model, pre, tokens, types, merges or scores
    <name>.model               the same as model files of SentencePiece
    <name>.tiktoken            the same as files of tiktoken; the name begins with the scheme
    <name>.expected            a line for each document: hash of the ids (FNV-1a, folded to 32 bits), hash of the decoded text or =
                               when it is the document, the number of ids and, for each 200th document, ": id id …"
    splits.json                what each pre-tokenizer makes of short texts
    cases.json                 single texts with options, for added tokens, post-processors and boundaries
Where two judges answer (tokenizers, SentencePiece, llama.cpp), the script prints how many documents they disagree on.
"""
import base64
import json
import os
import sys
import tempfile

import gguf
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, os.path.dirname(__file__))
from tokenizer_corpus import corpus  # noqa: E402

OUT = os.path.join(os.path.dirname(__file__), "..", "golden", "tokenizer")
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
MINICPM5 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES)
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + SPACES)
USER_DEFINED = ["<start_of_turn>", "<end_of_turn>", "\n\n", "[INST]"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h >> 32 ^ h & 0xFFFFFFFF:08x}"


def ids_hash(ids):
    return fnv(b"".join(i.to_bytes(4, "little") for i in ids))


def write_expected(name, rows, documents):
    with open(f"{OUT}/{name}.expected", "w") as f:
        for i, (ids, text) in enumerate(rows):
            full = " :" + "".join(f" {x}" for x in ids) if i % 200 == 0 else ""
            f.write(f"{ids_hash(ids)} {'=' if text == documents[i].encode() else fnv(text)} {len(ids)}{full}\n")


def split(pattern, behavior="isolated"):
    return pre_tokenizers.Split(Regex(pattern), behavior)


def byte_level(use_regex=False, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


def train(documents, pre, size, specials, normalizer=None, decoder=None, alphabet=None, before_save=None, **model):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.decoder = decoder or decoders.ByteLevel()
    t.train_from_iterator(documents[::3], trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False, max_token_length=24,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet, limit_alphabet=700))
    data = json.loads(t.to_str())
    data["model"].update(model)
    if before_save:
        before_save(data)
    return Tokenizer.from_str(json.dumps(data))


def keep_bytes_in_the_model(data):
    data["added_tokens"] = [a for a in data["added_tokens"] if a["content"] not in BYTES]


def template(t, bos, eos=None):
    special = [(x, t.token_to_id(x)) for x in (bos, eos) if x]
    single = f"{bos} $A" + (f" {eos}" if eos else "")
    return processors.TemplateProcessing(single=single, special_tokens=special)


def byte_level_tokenizers(d):
    s = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    out = {
        "gpt2": train(d, byte_level(use_regex=True), 900, s),
        "smollm": train(d, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)]), 900, s),
        "llama3": train(d, pre_tokenizers.Sequence([split(LLAMA3), byte_level()]), 1200,
                        ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], ignore_merges=True),
        "qwen2": train(d, pre_tokenizers.Sequence([split(QWEN2), byte_level()]), 1000, s, normalizer=normalizers.NFC()),
        "minicpm5": train(d, pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split(MINICPM5), byte_level()]), 900, ["<s>", "</s>", "<unk>"],
                          ignore_merges=True),
        "gpt4o": train(d, pre_tokenizers.Sequence([split(GPT4O), byte_level()]), 900, ["<|endoftext|>"]),
        "tekken": train(d, pre_tokenizers.Sequence([split(TEKKEN), byte_level()]), 900, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], ignore_merges=True),
        "deepseek": train(d, pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level()]), 900, s),
        "prefix": train(d, byte_level(use_regex=True, prefix=True), 700, s),
    }
    out["llama3"].post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(out["llama3"], "<|begin_of_text|>")])
    # ignore_merges matters only for a token that its own merges do not reach: one is put in by hand.
    data = json.loads(out["llama3"].to_str())
    data["model"]["vocab"]["Ġriver"] = data["model"]["vocab"].get("Ġriver", len(data["model"]["vocab"]))
    data["model"]["vocab"]["otter"] = len(data["model"]["vocab"])
    out["llama3"] = Tokenizer.from_str(json.dumps(data))
    add_varied_tokens(out["prefix"])
    out["gpt2"].add_tokens([AddedToken(" " * n, normalized=False) for n in (2, 3, 4, 8)] + [AddedToken("\t\t")])
    return out


def add_varied_tokens(t):
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("<cell>", rstrip=True, special=True)])
    t.add_tokens([AddedToken("river", single_word=True), AddedToken("[INST]", lstrip=True, rstrip=True),
                  AddedToken("otter", normalized=False), AddedToken("snake_word", single_word=True)])


def piece_tokenizers(d):
    mark = "▁"
    to_mark = normalizers.Replace(" ", mark)
    gemma_decoder = decoders.Sequence([decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()])
    llama_decoder = decoders.Sequence([decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    pieces = dict(alphabet=[], byte_fallback=True, fuse_unk=True, unk_token="<unk>", before_save=keep_bytes_in_the_model)
    out = {}
    # Trained with a pre-tokenizer, so that pieces keep inside words, then used as the model families do.
    gemma = train(d, pre_tokenizers.Split(mark, "merged_with_next"), 1800, ["<pad>", "<eos>", "<bos>", "<unk>"] + BYTES, normalizer=to_mark,
                  decoder=gemma_decoder, **pieces)
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 6)] + [AddedToken(" " * n, normalized=False) for n in range(2, 6)])
    gemma.post_processor = template(gemma, "<bos>")
    out["gemma"] = gemma
    llama2 = train(d, pre_tokenizers.Split(mark, "merged_with_next"), 1600, ["<unk>", "<s>", "</s>"] + BYTES,
                   normalizer=normalizers.Sequence([normalizers.Prepend(mark), to_mark]), decoder=llama_decoder, **pieces)
    data = json.loads(llama2.to_str())
    data["pre_tokenizer"] = None
    out["llama2"] = Tokenizer.from_str(json.dumps(data))
    out["llama2"].post_processor = template(out["llama2"], "<s>")
    mistral = train(d, pre_tokenizers.Metaspace(mark, prepend_scheme="first", split=True), 1600, ["<unk>", "<s>", "</s>"] + BYTES,
                    decoder=llama_decoder, **pieces)
    mistral.pre_tokenizer = pre_tokenizers.Metaspace(mark, prepend_scheme="first", split=False)
    mistral.post_processor = template(mistral, "<s>", "</s>")
    out["mistral"] = mistral
    no_fallback = dict(pieces, byte_fallback=False)
    out["metaspace"] = train(d, pre_tokenizers.Metaspace(mark, prepend_scheme="always", split=True), 800, ["<unk>", "<s>"], normalizer=normalizers.NFKC(),
                             decoder=llama_decoder, **no_fallback)
    words = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.Digits()])
    out["words"] = train(d, words, 800, ["<unk>"], normalizer=normalizers.NFD(), decoder=gemma_decoder, **dict(no_fallback, fuse_unk=False))
    parts = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"[aeiou]\w"), "contiguous"), pre_tokenizers.Split(Regex(r"\d+"), "merged_with_next"),
                                     pre_tokenizers.Split("é", "removed"), pre_tokenizers.Split(Regex(r"\s+$"), "isolated", invert=True),
                                     pre_tokenizers.Split(Regex(r"\b(?=[A-Z])"), "isolated"), pre_tokenizers.WhitespaceSplit()])
    out["splits"] = train(d, parts, 700, ["<unk>"], normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.Replace(Regex(r"[xyz]{2,}"), "Q")]),
                          decoder=gemma_decoder, **dict(no_fallback, unk_token=None))
    return out


def charsmap_of(model):
    """precompiled_charsmap of a SentencePiece model file."""
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model)
    return proto.normalizer_spec.precompiled_charsmap


def word_tokenizers(d, charsmap):
    """Unigram, WordPiece and WordLevel, with the steps that model families put around them."""
    out = {}

    def trained(name, model, trainer, normalizer, pre, decoder, post=None):
        t = Tokenizer(model)
        if normalizer:
            t.normalizer = normalizer
        t.pre_tokenizer, t.decoder = pre, decoder
        # Unigram's vocabulary must hold every character it is trained on: those of few scripts.
        few = [x for x in d[::3] if max(x, default=" ") < "\u0600"] if isinstance(model, models.Unigram) else d[::3]
        t.train_from_iterator(few, trainer)
        if post:
            t.post_processor = post(t)
        out[name] = t

    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained("bert", models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=1500, special_tokens=bert, show_progress=False, limit_alphabet=700),
            normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(),
            lambda t: processors.BertProcessing(("[SEP]", t.token_to_id("[SEP]")), ("[CLS]", t.token_to_id("[CLS]"))))
    cased = models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20)
    trained("bert_cased", cased, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=bert, show_progress=False, limit_alphabet=700),
            normalizers.BertNormalizer(lowercase=False, strip_accents=False, clean_text=True), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False))
    trained("wordlevel", models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(vocab_size=900, special_tokens=["<unk>"], show_progress=False),
            normalizers.Sequence([normalizers.Nmt(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()]),
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.FixedLength(6)]), None)
    mark = "▁"
    metaspace = pre_tokenizers.Metaspace(mark, prepend_scheme="always", split=True)

    def unigram(size=2400, special=("<pad>", "</s>", "<unk>")):
        return trainers.UnigramTrainer(vocab_size=size, special_tokens=list(special), unk_token="<unk>", show_progress=False)
    trained("unigram", models.Unigram(), unigram(),
            normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")]), metaspace, decoders.Metaspace(mark, "always", True),
            lambda t: processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", t.token_to_id("</s>"))]))
    trained("unigram_whole", models.Unigram(), unigram(special=["<unk>", "<s>", "</s>"]), None, metaspace, decoders.Metaspace(mark, "first", False))
    data = json.loads(out["unigram_whole"].to_str())
    data["model"]["byte_fallback"] = True
    data["model"]["vocab"] += [[b, 0.0] for b in BYTES]
    data["pre_tokenizer"] = json.loads(pre_tokenizers.Metaspace(mark, prepend_scheme="first", split=False).__getstate__())
    data["decoder"] = json.loads(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(mark, "first", False)]).__getstate__())
    out["unigram_whole"] = Tokenizer.from_str(json.dumps(data))
    add_varied_tokens(out["unigram"])
    add_varied_tokens(out["bert"])
    # Loaded again, since reading a score from a file may change its last bit.
    return {name: Tokenizer.from_str(t.to_str()) for name, t in out.items()}


SENTENCEPIECE = {
    "sp_unigram": dict(model_type="unigram", character_coverage=0.98, user_defined_symbols=USER_DEFINED),
    "sp_unigram_bytes": dict(model_type="unigram", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
                             add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols=["<start_of_turn>", "[INST]", "otter"]),
    "sp_bpe": dict(model_type="bpe", character_coverage=0.98, normalization_rule_name="nmt_nfkc_cf", user_defined_symbols=["[INST]", "ab"]),
    "sp_llama": dict(model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
                     allow_whitespace_only_pieces=True, split_digits=True),
    "sp_gemma": dict(model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
                     add_dummy_prefix=False, split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=USER_DEFINED + ["<table>"]),
}


def sentencepiece_model(documents, size, **options):
    """A model file of SentencePiece, trained on every third document."""
    import io
    text, model = [x for d in documents[::3] for x in d.split("\n") if x.strip()], io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=model, vocab_size=size, minloglevel=2, num_threads=1,
                                             hard_vocab_limit=False, **options)
    return model.getvalue()


def sentencepiece_rows(model, documents):
    p = sentencepiece.SentencePieceProcessor(model_proto=model)
    encoded = [p.encode(d) for d in documents]
    return [(ids, p.decode(ids).encode()) for ids in encoded]


def tiktoken_patterns():
    """The schemes' patterns, as their makers publish them."""
    from tiktoken_ext import openai_public
    import inspect
    import re as regex
    source = inspect.getsource(openai_public)
    o200k = "|".join(regex.findall(r'r"""(.*?)"""', source[source.index("def o200k_base"):], regex.S)[:7])
    cl100k = regex.search(r'r"""(.*?)"""', source[source.index("def cl100k_base"):], regex.S).group(1)
    return {"llama3": LLAMA3, "qwen": QWEN2, "cl100k_base": cl100k, "o200k_base": o200k}


# Where the schemes' special tokens stand behind the ranks, those that the corpus has.
TIKTOKEN_SPECIALS = {"llama3": {"<|begin_of_text|>": 0, "<|end_of_text|>": 1, "<|start_header_id|>": 6, "<|end_header_id|>": 7, "<|eot_id|>": 9},
                     "qwen": {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}, "cl100k_base": {"<|endoftext|>": 0}, "o200k_base": {"<|endoftext|>": 0},
                     "llama4": {"<|begin_of_text|>": 0, "<|end_of_text|>": 1}, "r50k_base": {"<|endoftext|>": 0}}


def tiktoken_encoding(name, ranks):
    import tiktoken
    specials = {text: len(ranks) + at for text, at in TIKTOKEN_SPECIALS[name].items()}
    patterns = {**tiktoken_patterns(), "llama4": GPT4O, "r50k_base": GPT2}
    return tiktoken.Encoding(name, pat_str=patterns[name], mergeable_ranks=ranks, special_tokens=specials)


def tiktoken_files(documents, size):
    """Ranks of byte-level BPE trained with each scheme's pattern: {name: (text of the file, Encoding)}."""
    out = {}
    for name, pattern in tiktoken_patterns().items():
        plain = {"cl100k_base": LLAMA3, "o200k_base": GPT4O}.get(name, pattern)
        t = train(documents, pre_tokenizers.Sequence([split(plain), byte_level()]), size, [])
        to_byte = {c: b for b, c in bytes_to_characters().items()}
        ranks = {bytes(to_byte[c] for c in text): rank for text, rank in t.get_vocab().items()}
        lines = "".join(f"{base64.b64encode(b).decode()} {r}\n" for b, r in sorted(ranks.items(), key=lambda x: x[1]))
        out[name] = lines, tiktoken_encoding(name, ranks)
    return out


def bytes_to_characters():
    """GPT-2's alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(0x100 + i) for i, b in enumerate(rest)}}


def tiktoken_rows(name, encoding, documents):
    import unicodedata
    texts = [unicodedata.normalize("NFC", d) for d in documents] if name == "qwen" else documents
    encoded = [encoding.encode(d, allowed_special="all") for d in texts]
    return [(ids, encoding.decode_bytes(ids)) for ids in encoded]


def arrays_of(t, pre):
    """The arrays that a GGUF file of this tokenizer has."""
    data = json.loads(t.to_str())
    vocab = dict(data["model"]["vocab"])
    types = dict.fromkeys(vocab.values(), 1)
    for a in data["added_tokens"]:
        vocab[a["content"]] = a["id"]
        types[a["id"]] = 3 if a["special"] else 4
    tokens = [x for x, _ in sorted(vocab.items(), key=lambda item: item[1])]
    merges = [" ".join(m) if isinstance(m, list) else m for m in data["model"]["merges"]]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "types": [types[i] for i in range(len(tokens))], "merges": merges}


def sentencepiece_arrays(documents, prefix):
    """Trains SentencePiece BPE with byte fall-back; returns the processor and its arrays as GGUF has them."""
    with tempfile.TemporaryDirectory() as folder:
        text = [x for d in documents[::3] for x in d.split("\n") if x.strip()]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_prefix=f"{folder}/m", vocab_size=2600, model_type="bpe", byte_fallback=True, character_coverage=0.98,
            normalization_rule_name="identity", add_dummy_prefix=prefix, remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
            split_digits=True, user_defined_symbols=USER_DEFINED, minloglevel=2, num_threads=1,
            pad_id=-1, unk_id=0, bos_id=1, eos_id=2)
        p = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    n = p.get_piece_size()
    kind = [2 if p.is_unknown(i) else 3 if p.is_control(i) else 6 if p.is_byte(i) else 5 if p.is_unused(i) else 1 for i in range(n)]
    tokens = [p.id_to_piece(i) for i in range(n)]
    for token in USER_DEFINED:
        kind[tokens.index(token)] = 4
    return p, {"model": "llama", "pre": "default", "tokens": tokens, "types": kind, "scores": [round(p.get_score(i), 4) for i in range(n)],
               "add_space_prefix": prefix}


def llama_cpp_of(arrays):
    """llama.cpp's tokenizer for these arrays, through a GGUF file without tensors."""
    import llama_cpp
    path = tempfile.mktemp(suffix=".gguf")
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64), w.add_embedding_length(32), w.add_block_count(1), w.add_feed_forward_length(32), w.add_head_count(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model(arrays["model"]), w.add_tokenizer_pre(arrays["pre"]), w.add_token_list(arrays["tokens"]), w.add_token_types(arrays["types"])
    if "merges" in arrays:
        w.add_token_merges(arrays["merges"])
    if "scores" in arrays:
        w.add_token_scores(arrays["scores"]), w.add_add_space_prefix(arrays["add_space_prefix"])
    w.add_bos_token_id(1), w.add_eos_token_id(2)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
    return llama_cpp.Llama(path, vocab_only=True, verbose=False)


def compare(name, judge, documents, rows, encode):
    different = [i for i, d in enumerate(documents) if encode(d) != rows[i][0]]
    print(f"{name}: {judge} differs in {len(different)} of {len(documents)} documents {different[:8]}", flush=True)


def llama_encode(model, special=True):
    return lambda d: model.tokenize(d.encode(), add_bos=False, special=special) if d else []


def llama_decode(model, ids):
    import ctypes
    import llama_cpp
    vocab, out = llama_cpp.llama_model_get_vocab(model._model.model), ctypes.create_string_buffer(1 << 16)
    size = llama_cpp.llama_detokenize(vocab, (llama_cpp.llama_token * len(ids))(*ids), len(ids), out, len(out), False, True)
    assert size >= 0
    return out.raw[:size]


def rows_of(t, documents):
    encoded = t.encode_batch(documents, add_special_tokens=False)
    decoded = t.decode_batch([e.ids for e in encoded], skip_special_tokens=False)
    return [(e.ids, x.encode()) for e, x in zip(encoded, decoded)]


def smollm2(path, documents):
    """The real vocabulary: tokenizers built from its arrays, and llama.cpp on the file itself."""
    import llama_cpp
    fields = gguf.GGUFReader(path).fields
    tokens, types, merges = (fields[f"tokenizer.ggml.{k}"].contents() for k in ("tokens", "token_type", "merges"))
    t = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(use_regex=True)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([x for x, kind in zip(tokens, types) if kind == 3])
    rows = rows_of(t, documents)
    write_expected("smollm2", rows, documents)
    compare("smollm2", "llama.cpp", documents, rows, llama_encode(llama_cpp.Llama(path, vocab_only=True, verbose=False)))


def cases(tokenizers):
    """Single texts: added tokens with their flags, post-processors, seams between prompt and answer."""
    def around(token):
        return ["  x", f"{token}hello", f"{token} hello", f"a{token}b", f"a {token} b", f"{token}\nuser", f"{token}{token}", f"{token}{token} x", f" {token}"]
    texts = {
        "prefix": ["a <mask> b", "a  <mask>\t<cell>  b", "<cell>\n\n x<mask>", "river rivers the river, river_ _river ériver river", "a [INST] b [INST][INST] c",
                   "x     y  z", "otters and an otter", " lead", "lead", "", "snake_word snake_words", "<mask><mask> <mask>", "\u00a0<mask>\u3000<cell>\u2003q"],
        "llama3": ["", "otter", "the otter", "river", " river", "<|begin_of_text|>hi<|eot_id|>", "don't DON'T don’t", "1234567", "\r\n\r\n x", "a\n\n\nb  \n c"],
        "qwen2": ["e\u0301 \u1100\u1161\u11a8 x", "\u0958 \u212b \ufb01", "a\u0300\u0301\u0323b", "1234", "\u09c7\u09be"],
        "gemma": [*around("<bos>"), "", " ", "  a", "a\n\n\nb", "a      b", "<bos>x<eos>", "\U0001f468\u200d\U0001f469", "ꙮ", "▁x", " \n \n\n"],
        "llama2": [*around("<s>"), "", " ", "hello", " hello", "  hello", "a<s>b</s> c", "<0x41>", "ꙮ", "\n"],
        "mistral": [*around("<s>"), "", "hello", " hello", "a<s>b", "</s>", "ꙮ\n"],
        "metaspace": ["hello  world", " x", "ﬁ ① ꙮꙮ", "<s>hi", "▁▁a"],
        "words": ["a ꙮꙮ b", "x,y. 12ab", "é"],
        "smollm": ["Answer: ", "Answer: yes", "\n", "2024-01-02", "👍", "👍🏽", "the cat", " cat", "<|im_start|>user\nhi<|im_end|>\n"],
    }
    out = []
    for name, items in texts.items():
        t = tokenizers[name]
        for text in items:
            for add_special in (False, True):
                for parse_special in (True, False):
                    t.encode_special_tokens = not parse_special
                    ids = t.encode(text, add_special_tokens=add_special).ids
                    out.append({"tokenizer": name, "text": text, "add_special": add_special, "parse_special": parse_special, "ids": ids,
                                "decoded": t.decode(ids, skip_special_tokens=False), "decoded_skip": t.decode(ids, skip_special_tokens=True)})
            t.encode_special_tokens = False
    with open(f"{OUT}/cases.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in out) + "\n]\n")


def split_cases():
    """Every behavior of Split, inverted or not, and the pre-tokenizers that are splits by another name."""
    texts = ["--a--b1-", "a", "--", "a  b   c ", "1a22b333", "▁▁x▁y", "x(y),z!", "", "é-ü", " どこで生れ。ー Yes.кот ա։ב١ x"]
    behaviors = ["removed", "isolated", "contiguous", "merged_with_previous", "merged_with_next"]
    named = [({"type": "Split", "pattern": {kind: p}, "behavior": b.title().replace("_", "").replace("with", "With"), "invert": i},
              pre_tokenizers.Split(p if kind == "String" else Regex(p), b, i))
             for kind, p in (("String", "-"), ("Regex", r"\d"), ("Regex", r"\s+"), ("Regex", "(?=b)|x")) for b in behaviors for i in (False, True)]
    named += [({"type": "Digits", "individual_digits": i}, pre_tokenizers.Digits(i)) for i in (False, True)]
    named += [({"type": "Punctuation", "behavior": b}, pre_tokenizers.Punctuation(b.lower())) for b in ("Removed", "Isolated", "Contiguous")]
    named += [({"type": "Whitespace"}, pre_tokenizers.Whitespace()), ({"type": "WhitespaceSplit"}, pre_tokenizers.WhitespaceSplit()),
              ({"type": "CharDelimiterSplit", "delimiter": "-"}, pre_tokenizers.CharDelimiterSplit("-")), ({"type": "UnicodeScripts"}, pre_tokenizers.UnicodeScripts()),
              ({"type": "BertPreTokenizer"}, pre_tokenizers.BertPreTokenizer()), ({"type": "FixedLength", "length": 3}, pre_tokenizers.FixedLength(3))]
    named += [({"type": "Metaspace", "replacement": "▁", "prepend_scheme": p, "split": s}, pre_tokenizers.Metaspace("▁", p, s))
              for p in ("always", "first", "never") for s in (False, True)]
    out = [{"pre_tokenizer": config, "text": t, "pieces": [x for x, _ in pre.pre_tokenize_str(t)] if t else []} for config, pre in named for t in texts]
    with open(f"{OUT}/splits.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in out) + "\n]\n")


def main():
    os.makedirs(OUT, exist_ok=True)
    split_cases()
    documents = corpus()
    with open(f"{OUT}/corpus.jsonl", "w", newline="\n") as f:
        f.writelines(json.dumps(d, ensure_ascii=False).replace("\x85", "\\u0085").replace("\u2028", "\\u2028") + "\n" for d in documents)
    byte_tokenizers = byte_level_tokenizers(documents)
    models_of_sentencepiece = {name: sentencepiece_model(documents, 1600, **options) for name, options in SENTENCEPIECE.items()}
    tokenizers = {**byte_tokenizers, **piece_tokenizers(documents), **word_tokenizers(documents, charsmap_of(models_of_sentencepiece["sp_unigram"]))}
    for name, model in models_of_sentencepiece.items():
        with open(f"{OUT}/{name}.model", "wb") as f:
            f.write(model)
        write_expected(name, sentencepiece_rows(model, documents), documents)
    for name, (text, encoding) in tiktoken_files(documents, 900).items():
        with open(f"{OUT}/{name}.small.tiktoken", "w") as f:
            f.write(text)
        write_expected(f"{name}.small", tiktoken_rows(name, encoding, documents), documents)
    expected = {}
    for name, t in tokenizers.items():
        path = f"{OUT}/{name}.tokenizer.json"
        if os.path.exists(path):
            tokenizers[name] = t = Tokenizer.from_file(path)
        else:
            t.save(path, pretty=False)
        expected[name] = rows_of(t, documents)
        write_expected(name, expected[name], documents)
    cases(tokenizers)
    pres = {"gpt2": "gpt-2", "smollm": "smollm", "llama3": "llama-bpe", "qwen2": "qwen2", "minicpm5": "minicpm5", "gpt4o": "gpt-4o", "tekken": "tekken",
            "deepseek": "deepseek-v3"}
    for name, pre in pres.items():
        try:
            compare(name, "llama.cpp", documents, expected[name], llama_encode(llama_cpp_of(arrays_of(byte_tokenizers[name], pre))))
        except ValueError as e:
            print(f"{name}: llama.cpp does not load it ({e})")
    for name, prefix in (("sentencepiece", True), ("sentencepiece_no_prefix", False)):
        p, arrays = sentencepiece_arrays(documents, prefix)
        with open(f"{OUT}/{name}.vocabulary.json", "w") as f:
            json.dump(arrays, f, ensure_ascii=False)
        model = llama_cpp_of(arrays)
        rows = [(ids, llama_decode(model, ids)) for ids in map(llama_encode(model), documents)]
        write_expected(name, rows, documents)
        # SentencePiece never reads control tokens from text, and puts its space in front of the whole text only.
        plain = [d for d in documents if not any(x in d for x in USER_DEFINED + ["<s>", "</s>", "<unk>"])]
        compare(name, "SentencePiece", plain, [(ids, None) for ids in map(llama_encode(model, False), plain)], p.encode)
    if len(sys.argv) > 1:
        smollm2(sys.argv[1], documents)


if __name__ == "__main__":
    main()
