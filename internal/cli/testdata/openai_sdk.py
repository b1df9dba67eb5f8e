"""Drives a gateway with the official Python client and checks what a user of it relies on. Usage: openai_sdk.py BASE_URL MODEL."""

import sys

import openai

base_url, model = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=base_url, api_key="client-key", max_retries=0)
chat = [
    {"role": "system", "content": "You answer in one line. " * 80},
    {"role": "user", "content": "今天的火车几点开？"},
]


def check(name, ok, got=None):
    if not ok:
        sys.exit(f"{name}: got {got!r}")
    print("ok", name)


models = [m.id for m in client.models.list()]
check("models", model in models, models)

first = client.chat.completions.create(model=model, messages=chat, max_tokens=24)
check("chat", bool(first.choices[0].message.content) and first.usage.prompt_tokens > 0, first)

raw = client.chat.completions.with_raw_response.create(model=model, messages=chat, max_tokens=8)
check("instance header", bool(raw.headers.get("x-warmroute-instance")), dict(raw.headers))
again = raw.parse()
check("cached tokens", again.usage.prompt_tokens_details.cached_tokens > 0, again.usage)

text, finish, usage = "", None, None
for chunk in client.chat.completions.create(
    model=model, messages=chat, max_tokens=24, stream=True, stream_options={"include_usage": True}
):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        text += choice.delta.content or ""
        finish = choice.finish_reason or finish
check("stream", text == first.choices[0].message.content and finish is not None, (text, finish))
check("stream usage", usage is not None and usage.completion_tokens > 0, usage)

seen = [c.usage for c in client.chat.completions.create(model=model, messages=chat, max_tokens=4, stream=True)]
check("no usage unless asked", seen and not any(seen), seen)

turn2 = chat + [{"role": "assistant", "content": text}, {"role": "user", "content": "And back?"}]
usage2 = client.chat.completions.create(model=model, messages=turn2, max_tokens=8).usage
check("turn 2 hits turn 1", usage2.prompt_tokens_details.cached_tokens > 0, usage2)

completion = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8)
check("completions", bool(completion.choices[0].text), completion)
pieces = [c.choices[0].text for c in client.completions.create(model=model, prompt="Once", max_tokens=8, stream=True)]
check("completions stream", "".join(pieces) != "", pieces)

vector = client.embeddings.create(model=model, input=["a", "b"], encoding_format="float")
check("embeddings", len(vector.data) == 2 and len(vector.data[0].embedding) > 0, vector)

answer = client.responses.create(model=model, input="Say hello.", max_output_tokens=16)
check("responses", bool(answer.output_text), answer)
kinds = [e.type for e in client.responses.create(model=model, input="Say hello.", max_output_tokens=16, stream=True)]
check("responses stream", kinds and kinds[-1] in ("response.completed", "response.incomplete"), kinds)

try:
    client.chat.completions.create(model="no-such-model", messages=chat)
    check("unknown model", False)
except openai.NotFoundError as e:
    check("unknown model", model in str(e), str(e))

try:
    client.chat.completions.create(model=model, messages=chat, max_tokens=-1)
    check("bad request", False)
except openai.BadRequestError as e:
    check("bad request", True, str(e))

with client.chat.completions.create(model=model, messages=chat, max_tokens=2000, stream=True) as stream:
    next(iter(stream))
check("left in mid-stream", True)
