"""Compares chat templates with transformers, byte for byte, errors included: every template of a folder with every conversation.

    pip install transformers jinja2
    python3 tests/oracle/compare_templates.py FOLDER build/cpu/text_test [WORK_FOLDER]

FOLDER holds *.jinja files (folders inside it too). What transformers makes of them goes to WORK_FOLDER in the form of tests/golden/chat/;
the test program then reads that folder (SLUICE_CHAT_GOLDEN) and compares.
"""
import os
import subprocess
import sys
import tempfile

import chat_conversations
import chat_oracle

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def main():
    folder, program = sys.argv[1], sys.argv[2]
    work = sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp()
    os.makedirs(work, exist_ok=True)
    chats = chat_conversations.all_chats()
    chat_oracle.write(os.path.join(work, "conversations.json"), chats)
    tok, count = chat_oracle.tokenizer(TOKENS), 0
    for root, _, files in sorted(os.walk(folder)):
        for file in sorted(files):
            if not file.endswith(".jinja"):
                continue
            source = open(os.path.join(root, file), newline="").read()
            name = os.path.relpath(os.path.join(root, file), folder).replace(os.sep, "__").removesuffix(".jinja")
            results = [chat_oracle.render(tok, source, chat) for chat in chats]
            chat_oracle.write(os.path.join(work, name + ".json"), {"source": source, "tokens": TOKENS, "stops": ["</s>"], "results": results})
            count += 1
            print(f"{name}: {sum('text' in r for r in results)} texts, {sum('error' in r for r in results)} errors", flush=True)
    print(f"{count} templates, {len(chats)} conversations each")
    sys.exit(subprocess.run([program, "-tc=chat template: golden files*"], env={**os.environ, "SLUICE_CHAT_GOLDEN": work}).returncode)


if __name__ == "__main__":
    main()
