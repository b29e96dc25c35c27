"""The conversations that every chat template is tried with: what rows of people's data look like."""
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather \"now\" at a place <b>&'",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Ort, z. B. Zürich"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "integer", "default": 1}}, "required": ["place"]}}}
SUM = {"type": "function", "function": {
    "name": "sum", "description": "Adds numbers",
    "parameters": {"type": "object", "properties": {"values": {"type": "array", "items": {"type": "number"}}, "deep": {
        "type": "object", "properties": {"flag": {"type": "boolean"}, "opt": {"type": ["string", "null"], "nullable": True}}}}, "required": ["values"]},
    "return": {"type": "number"}}}
TOOLS = [WEATHER, SUM]


def s(text): return {"role": "system", "content": text}
def u(text): return {"role": "user", "content": text}
def a(text, **more): return {"role": "assistant", "content": text, **more}
def call(name, arguments, call_id="call_abc1"): return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
def tool(text, name="get_weather", call_id="call_abc1"): return {"role": "tool", "name": name, "tool_call_id": call_id, "content": text}


ODD = {"b": 1, "a": [True, None, 1.0, 1e-7, 2**53 + 1, -0.0], "é": "—/<&'\"\n", "empty": {}, "none": [], "nested": {"z": {"y": [1, 2, {"x": "w"}]}}}

CHATS = {
    "one turn": dict(messages=[u("What is 2 + 2?"), a("It is four.")]),
    "system": dict(messages=[s("Answer in rhyme."), u("What is a river?"), a("A silver liver-giver.")]),
    "three turns": dict(messages=[u("one"), a("eins"), u("two"), a("zwei"), u("three"), a("drei")]),
    "system, three turns": dict(messages=[s("Count."), u("one"), a("eins"), u("two"), a("zwei"), u("three"), a("drei")]),
    "white space": dict(messages=[s(" \n spaced system \t"), u(" a "), a("\n\nb\n"), u("c\u00a0"), a("  \u2003d\u3000 ")]),
    "unicode": dict(messages=[u("Grüß Gott, 你好 👩‍👩‍👧 ﬀ İ ß"), a("ΟΔΥΣΣΕΥΣ ǆ naïve e\u0301 \u200b 🇨🇭")]),
    "empty contents": dict(messages=[s(""), u(""), a(""), u("x"), a("y")]),
    "question only": dict(messages=[u("only a question")]),
    "system only": dict(messages=[s("only a system")]),
    "assistant first": dict(messages=[a("the assistant begins"), u("yes?"), a("no")]),
    "two users": dict(messages=[u("two"), u("users"), a("in a row")]),
    "two assistants": dict(messages=[u("go"), a("first part"), a("second part")]),
    "late system": dict(messages=[u("late"), a("then"), s("a system"), u("turn"), a("and an answer")]),
    "marks in contents": dict(messages=[u("quotes ' \" \\ and {{ braces }} {% tags %} {# note #}"), a("<|im_end|> <|eot_id|> </s> [/INST] <end_of_turn> '+'")]),
    "code": dict(messages=[u("```py\nprint('%s' % x)\n```"), a("```cpp\nint main() {\n\treturn 0;\n}\n```\r\nend")]),
    "reasoning": dict(messages=[u("17 * 3?"), a("51", reasoning_content="17 * 3 = 51."), u("and 4?"), a("68", reasoning_content="17 * 4 = 68.\nSure.")]),
    "reasoning named thinking": dict(messages=[u("why?"), a("because", thinking="hm"), u("oh"), a("so", reasoning="well")]),
    "think in content": dict(messages=[u("q1"), a("<think>\nfirst\n</think>\n\nanswer one"), u("q2"), a("<think>\nsecond\n</think>\n\nanswer two")]),
    "thinking off": dict(messages=[s("sys"), u("q"), a("plain answer")], arguments={"enable_thinking": False, "thinking": False}),
    "thinking on": dict(messages=[u("q"), a("plain answer"), u("more")], arguments={"enable_thinking": True, "thinking": True}),
    "effort": dict(messages=[u("q"), a("r")], arguments={"reasoning_effort": "high", "model_identity": "You are Probe.", "date_string": "1 Jan 2025"}),
    "tools offered": dict(messages=[s("Use tools."), u("Weather?"), a("Where?")], tools=TOOLS),
    "tools, no system": dict(messages=[u("Weather?")], tools=[WEATHER]),
    "no tools": dict(messages=[u("Weather?"), a("dunno")], tools=[]),
    "tool call": dict(messages=[u("Weather in Bern?"), {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": "Bern", "days": 2})]},
                                tool("{\"temp\": 21}"), a("21 degrees.")], tools=TOOLS),
    "tool call without content": dict(messages=[u("Weather in Bern?"), {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"place": "Bern"})]},
                                                tool("sunny"), a("Sunny."), u("Thanks"), a("Welcome")], tools=TOOLS),
    "tool call with words": dict(messages=[s("sys"), u("Weather?"), a("Let me look.", tool_calls=[call("get_weather", {"place": "Zürich", "unit": "c"})]), tool("rain"), a("Rain.")], tools=TOOLS),
    "two tool calls": dict(messages=[u("Both?"), a("", tool_calls=[call("get_weather", {"place": "Bern"}, "call_abc1"), call("sum", {"values": [1, 2.5]}, "call_abc2")]),
                                     tool("sun", "get_weather", "call_abc1"), tool("3.5", "sum", "call_abc2"), a("Sun and 3.5.")], tools=TOOLS),
    "odd arguments": dict(messages=[u("odd"), a("", tool_calls=[call("odd_one", ODD, "odd123456")]), tool("ok", "odd_one", "odd123456"), a("done")], tools=TOOLS),
    "no arguments": dict(messages=[u("now"), a("", tool_calls=[call("sum", {}, "a1b2c3d4e")]), tool("0", "sum", "a1b2c3d4e"), a("zero")], tools=[SUM]),
    "call with reasoning": dict(messages=[u("w?"), {"role": "assistant", "reasoning_content": "I need the tool.", "content": "", "tool_calls": [call("get_weather", {"place": "Rom"})]},
                                          tool("hot"), a("Hot.", reasoning_content="The tool says hot.")], tools=TOOLS),
    "tool result as parts": dict(messages=[u("w?"), a("", tool_calls=[call("get_weather", {"place": "Rom"})]), {"role": "tool", "tool_call_id": "call_abc1", "content": [{"type": "text", "text": "hot"}]}, a("Hot.")]),
    "parts": dict(messages=[{"role": "system", "content": [{"type": "text", "text": "sys"}]}, {"role": "user", "content": [{"type": "text", "text": "part one "}, {"type": "text", "text": "part two"}]},
                            {"role": "assistant", "content": [{"type": "text", "text": "parts back"}]}]),
    "developer": dict(messages=[{"role": "developer", "content": "Be brief."}, u("hi"), a("yo")]),
    "unknown role": dict(messages=[{"role": "critic", "content": "boo"}, u("hi"), a("yo")]),
    "documents": dict(messages=[u("cite"), a("[1]")], documents=[{"title": "One", "text": "First text"}, {"title": "Two", "text": "Second"}]),
    "extra keys": dict(messages=[{"role": "user", "content": "hi", "name": "ann", "weight": 0}, a("yo", weight=1, train=True, prefix=None)]),
    "no content": dict(messages=[u("hi"), {"role": "assistant"}]),
}


def all_chats():
    """Each with and without the generation prompt."""
    return [{"name": name, **chat, "add_generation_prompt": prompt} for name, chat in CHATS.items() for prompt in (False, True)]
