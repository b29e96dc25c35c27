"""The text that tokenizers are compared on: about 1.1 MB in some 3,000 documents, the same on every run.

Written for this project: phrases in many scripts, code, numbers, white space of all kinds, emoji, decomposed characters, random
assigned characters (of Unicode 14 and before, which is what PCRE2 10.42 knows), long words and texts of special tokens.
"""
import random
import unicodedata

PHRASES = {
    "en": "The river rose in the night and nobody heard it.|Don't you think it's odd that she'd've known?|I'LL BE THERE, THEY'RE LATE, "
          "WE'VE WON'T.|\"Quoted,\" she said; 'twas the dog's, not the dogs'.|Re-read the co-operative's e-mail: it costs $3.50/kg (incl. tax)!",
    "de": "Größere Bäche führten über die Straße.|Fußgänger müssen draußen bleiben, sagte Jürgen.|Donaudampfschifffahrtsgesellschaftskapitän",
    "fr": "L'été, où l'on s'éveille, n'est qu'un œuf.|« Ça va ? » demanda-t-il à Noël.|Aujourd'hui l'hôtel est fermé…",
    "es": "¿Dónde está el niño? ¡Mañana vendrá!|El pingüino comió ñoquis en Cádiz.",
    "pl": "Zażółć gęślą jaźń.|Chrząszcz brzmi w trzcinie w Szczebrzeszynie.",
    "tr": "İstanbul'da ılık bir rüzgâr esiyor.|Işıklar söndü, çocuklar uyudu.",
    "vi": "Tiếng Việt có nhiều dấu thanh.|Hôm nay trời đẹp quá, chúng ta đi dạo nhé!",
    "ru": "Съешь ещё этих мягких французских булок.|Река поднялась ночью, и никто не слышал.|Ёжик в тумане.",
    "uk": "Їжак з'їв п'ять ґав.|Сьогодні гарна погода, чи не так?",
    "el": "Η θάλασσα ήταν ήρεμη εκείνο το βράδυ.|Ποιος είναι ο δρόμος για το λιμάνι;",
    "he": "הנהר עלה בלילה ואיש לא שמע.|שָׁלוֹם עֲלֵיכֶם",
    "ar": "ارتفع النهر في الليل ولم يسمعه أحد.|السَّلَامُ عَلَيْكُمْ، كيف حالك؟|العدد ١٢٣٤٥",
    "fa": "رودخانه شب‌هنگام بالا آمد.|می‌خواهم بروم، نمی‌دانم کجا.",
    "hi": "नदी रात में चढ़ गई और किसी ने नहीं सुना।|क्षत्रिय, ज़रूर, संख्या १२३",
    "bn": "রাতে নদীর জল বেড়ে গেল।|বাংলা ভাষা, ১২৩৪",
    "ta": "இரவில் ஆறு உயர்ந்தது.|தமிழ் மொழி இனிமையானது",
    "te": "రాత్రి నది పొంగింది.|తెలుగు భాష",
    "ml": "രാത്രിയിൽ നദി ഉയർന്നു.|മലയാളം",
    "th": "แม่น้ำขึ้นในเวลากลางคืน และไม่มีใครได้ยิน|ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "lo": "ແມ່ນ້ຳຂຶ້ນໃນຕອນກາງຄືນ",
    "km": "ទន្លេឡើងនៅពេលយប់។",
    "my": "ညဘက်တွင် မြစ်ရေတက်သည်။",
    "ka": "მდინარე ღამით ადიდდა.|ქართული ენა",
    "hy": "Գետը գիշերը բարձրացավ։|Հայերեն",
    "am": "ወንዙ በሌሊት ሞላ።|አማርኛ",
    "zh": "河水在夜里上涨，没有人听见。|他说：“你好！”然后走了。|人工智能（AI）在２０２４年。|繁體字與簡体字混排",
    "ja": "夜のうちに川が増水したが、誰も気づかなかった。|カタカナとひらがな、漢字。|ﾊﾝｶｸｶﾅ と ＡＢＣ１２３|「はい」と言った…",
    "ko": "밤사이 강물이 불었지만 아무도 듣지 못했다.|안녕하세요, 반갑습니다!|대한민국 ㄱㄴㄷ ㅏㅑ",
    "bo": "མཚན་མོ་ཆུ་བོ་རྒྱས་སོང་།",
    "ch": "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ|ꭰꭱꭲ",
    "math": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β ≡ ∅ ⊄ ∞|∑_{i=1}^{n} i² = n(n+1)(2n+1)/6|𝔸𝕓𝒞 𝟙𝟚𝟛 ℵ₀ x⁻¹ ½ Ⅻ ① ㊿ ㎏",
    "signs": "© ® ™ § ¶ † ‡ • ‣ ◦ → ⇒ ↔ ░▒▓ ┌─┐ ♠♥♦♣ ☐☑ €£¥₹₿ ¡¿ ‰ ′″ ‐‑–—― …",
}
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "1️⃣#️⃣", "❤️", "🧑🏿‍🚀", "🫠", "☺︎", "👁️‍🗨️", "🏴󠁧󠁢󠁳󠁣󠁴󠁿"]
SPACES = [" ", "  ", "   ", "    ", "        ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r", " \n", "\n ", "\t \n", "\u00a0",
          "\u3000", "\u2009", "\u2028", "\u0085", "\u180e", "\u200b", "\ufeff", "\u202f", "\x0b", "\x0c", " " * 40, "\n" * 9, " \u00a0 "]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<s>", "</s>", "<unk>",
            "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<|im_", "|>", "<|", "<0x41>", "<0x0A>", "▁", "▁▁the", "Ġthe", "[INST]",
            "[/INST]", "<repo_name>", "<|im_start|><|im_end|>", "<mask>", "<cell>", "snake_word"]
CODE = [
    "def {f}({a}, {b}=None):\n    \"\"\"Return {a}.\"\"\"\n    if {a} != {b}:\n        return [{n} * x for x in range({n})]\n    raise ValueError(f'{{{a}!r}}')\n",
    "for (int {a} = 0; {a} < {n}; ++{a}) {{\n\t{b}[{a}] += 0x{n:x}u << ({a} & 7);  // {f}\n}}\n",
    "{{\"{a}\": {n}, \"{b}\": [true, null, {n}.5e-3], \"{f}\": \"\\u00e9\\n\"}}\n",
    "<div class=\"{a}-{b}\" id='{f}'>&nbsp;{n}&#8217;s</div>\n",
    "SELECT {a}.{b}, COUNT(*) FROM {f} WHERE {a} >= {n} AND {b} <> '';\n",
    "#include <{a}/{b}.h>\ntemplate <class T>\nstruct {f}Impl : Base<T, {n}> {{}};\n",
    "$ {a} --{b}={n} | grep -E '^{f}+$' && echo $?\n",
    "\\begin{{{a}}} $\\frac{{{n}}}{{{b}_{{i}}}}$ % {f}\r\n",
    "HTTPServer{a}CamelCase{b}XMLHttpRequest2{f}_v{n}",
]
WORDS = "river house tokenizer attention matrix light winter garden signal harbour question answer window mountain paper engine".split()


def word(r):
    w = r.choice(WORDS)
    return r.choice([w, w, w, w.capitalize(), w.upper(), w + "s", w + "'s", w + str(r.randrange(100)), w + "_" + r.choice(WORDS)])


def phrase(r, language=None):
    return r.choice(PHRASES[language or r.choice(sorted(PHRASES))].split("|"))


def number(r):
    n = r.randrange(10 ** r.randrange(1, 16))
    return r.choice([str(n), f"{n:,}", f"{n / 1000}", f"-{n}", f"{n % 256}.{n % 199}.0.{n % 7}", f"{1900 + n % 200}-{1 + n % 12:02}-{1 + n % 28:02}",
                     f"{n % 24}:{n % 60:02}", f"{n % 100}%", f"+49 {n % 1000} {n % 100000}", f"1e{n % 300}", f"{n:x}", f"{n}th",
                     "".join(chr(0x660 + int(c)) for c in str(n)), "".join(chr(0xFF10 + int(c)) for c in str(n)), "x²³ 4½ Ⅻ ①"])


def code(r):
    text = r.choice(CODE).format(a=word(r).replace("'", ""), b=r.choice(WORDS), f=r.choice(WORDS) + r.choice(["", "_", "X"]), n=r.randrange(10 ** r.randrange(1, 7)))
    return r.choice([text, "    " + text.replace("\n", "\n    "), "```\n" + text + "```\n"])


def assigned_characters():
    low = [c for c in range(0x80, 0x3000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    high = [c for c in range(0x3000, 0x1FB00) if not 0xD800 <= c < 0xF900 and unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    return low, high


def scramble(r, low, high):
    return "".join(chr(r.choice(low if r.random() < 0.7 else high)) + r.choice(["", "", "", " ", "a", "\n"]) for _ in range(r.randrange(5, 60)))


def decomposed(r):
    text = phrase(r, r.choice(["vi", "fr", "ko", "hi", "ja", "de", "ar", "bn", "el"]))
    form = r.choice(["NFD", "NFKD", "NFC", "NFKC"])
    marks = "".join(chr(r.randrange(0x300, 0x340)) for _ in range(r.randrange(0, 8)))
    return unicodedata.normalize(form, text) + r.choice(["", "Z" + marks, "ế" + marks])


def long_word(r):
    n = r.randrange(20, 900)
    return r.choice(["a" * n, "ab" * n, "".join(r.choice("0123456789abcdef") for _ in range(n)), "=" * n, "-" * n, "ha" * n, "あ" * (n // 3),
                     "https://example.org/" + "/".join(r.choice(WORDS) for _ in range(n // 30)) + f"?q={n}&x=%20#frag",
                     "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") for _ in range(n))])


def chat(r):
    return "".join(f"<|im_start|>{role}\n{phrase(r)} {phrase(r)}<|im_end|>\n" for role in ["system", "user", "assistant", "user", "assistant"])


def document(r, low, high):
    kind = r.randrange(12)
    if kind <= 2:
        language = r.choice(sorted(PHRASES))
        return " ".join(phrase(r, language) for _ in range(r.randrange(1, 9)))
    if kind == 3:
        return r.choice(SPACES).join(phrase(r) for _ in range(r.randrange(2, 7)))
    if kind == 4:
        return "\n".join(code(r) for _ in range(r.randrange(1, 5)))
    if kind == 5:
        return r.choice([" ", ", ", "\n", ""]).join(number(r) for _ in range(r.randrange(2, 25)))
    if kind == 6:
        return "".join(r.choice([word(r), r.choice(SPACES), phrase(r)[:12], r.choice(SPACES)]) for _ in range(r.randrange(3, 40)))
    if kind == 7:
        return "".join(r.choice(EMOJI) + r.choice(["", " ", word(r), "!"]) for _ in range(r.randrange(2, 30)))
    if kind == 8:
        return r.choice([" ", "\n", ""]).join(decomposed(r) for _ in range(r.randrange(1, 6)))
    if kind == 9:
        return scramble(r, low, high)
    if kind == 10:
        return "".join(r.choice([r.choice(SPECIALS), word(r), " ", "\n", phrase(r)[:20]]) for _ in range(r.randrange(3, 40)))
    return r.choice([long_word(r), chat(r), " ".join(word(r) for _ in range(r.randrange(20, 120)))])


def corpus(num_bytes=1_100_000, seed=20240607):
    r = random.Random(seed)
    low, high = assigned_characters()
    documents, size = ["", " ", "\n", "a", "  a", "a ", "é", "\u0301"], 0
    while size < num_bytes:
        documents.append(document(r, low, high))
        size += len(documents[-1].encode())
    return documents
