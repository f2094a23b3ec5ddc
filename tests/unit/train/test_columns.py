"""Conversations and instructions as text: by the chat template, or plainly; nothing lost unsaid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import PreTrainedTokenizerBase

from fretsaw.errors import DataError
from fretsaw.train.data import load_split
from fretsaw.train.found import FoundText
from fretsaw.train.packing import load_tokenizer
from tests.pico import write_tokenizer

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}</s>{% endfor %}"
)
STRICT = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
FORGETFUL = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"

HELLO = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
SHARED = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
SYSTEM = {"role": "system", "content": "be brief"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather"}}]}
PARTS = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
IMAGE = {"role": "user", "content": [{"type": "image", "url": "a.png"}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(folder)


def read(
    folder: Path, rows: list[dict[str, Any]], *, by: Any = None, **keys: Any
) -> tuple[list[str], FoundText]:
    for split in ("train", "validation"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
    source = load_split(folder, "train", tokenizer=by, **keys)
    return list(source), source.found(tokens=0)


def said(found: FoundText) -> list[str]:
    return [one.what for one in (*found.noted, *found.skipped)]


@pytest.mark.parametrize("column", ["messages", "conversations", "conversation", "dialogue"])
@pytest.mark.parametrize("messages", [HELLO, SHARED, json.dumps(HELLO)])
def test_u25_conversations_go_through_the_chat_template(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, column: str, messages: Any
) -> None:
    tokenizer.chat_template = TEMPLATE
    texts, found = read(tmp_path, [{"id": 1, column: messages}], by=tokenizer)
    assert texts == ["<user>hi</s><assistant>hello</s>"]
    assert found.form == f"column {column!r}"
    assert found.warnings() == ()


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"instruction": "add", "input": "1 2", "output": "3"}, "<user>add\n\n1 2"),
        ({"instruction": "add", "input": "", "output": "3"}, "<user>add"),
        ({"question": "add", "answer": "3"}, "<user>add"),
        ({"prompt": "add", "response": "3"}, "<user>add"),
        ({"system_prompt": "be", "question": "add", "response": "3"}, "<system>be</s><user>add"),
    ],
)
def test_u25_instructions_are_a_conversation_of_two(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, row: dict[str, Any], text: str
) -> None:
    tokenizer.chat_template = TEMPLATE
    texts, found = read(tmp_path, [row], by=tokenizer)
    assert texts == [f"{text}</s><assistant>3</s>"]
    assert found.form.startswith("columns ")


def test_u25_prompt_and_completion_are_one_text(tmp_path: Path) -> None:
    assert read(tmp_path, [{"prompt": "The sky is", "completion": " blue"}])[0] == [
        "The sky is blue"
    ]
    rows = [{"prompt": HELLO[:1], "completion": HELLO[1:]}]
    assert read(tmp_path, rows)[0] == ["user: hi\n\nassistant: hello"]


def test_u25_without_a_template_they_are_written_plainly_and_that_is_said(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer.chat_template = None
    rows: list[dict[str, Any]] = [
        {"messages": [SYSTEM, *HELLO]},
        {"messages": [HELLO[0], CALL], "tools": TOOLS},
    ]
    texts, found = read(tmp_path, rows, by=tokenizer)
    assert texts[0] == "system: be brief\n\nuser: hi\n\nassistant: hello"
    assert texts[1].startswith('tools: [{"type": "function"')
    assert texts[1].endswith('assistant: [{"function": {"name": "weather"}}]')
    assert len(found.noted) == 1
    assert found.noted[0].count == 2
    assert "the tokenizer has no chat template" in found.noted[0].what


def test_u25_system_messages_and_tools_are_kept_or_missed_aloud(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": [SYSTEM, *HELLO], "tools": json.dumps(TOOLS)},
        {"conversations": SHARED, "system": "be brief", "tools": TOOLS},
    ]
    for row in rows:
        tokenizer.chat_template = TEMPLATE
        texts, found = read(tmp_path, [row], by=tokenizer)
        assert "be brief" in texts[0]
        assert '"weather"' in texts[0]
        assert found.warnings() == ()
        tokenizer.chat_template = FORGETFUL
        texts, found = read(tmp_path, [row], by=tokenizer)
        assert texts == ["<user>hi<assistant>hello"]
        assert said(found) == [
            "a conversation whose system message the chat template leaves out",
            "a conversation whose tools the chat template leaves out",
        ]


def test_u25_what_a_template_refuses_is_left_out_and_counted(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer.chat_template = STRICT
    rows = [{"messages": [SYSTEM, *HELLO]}, {"messages": HELLO}, {"messages": [SYSTEM]}]
    texts, found = read(tmp_path, rows, by=tokenizer)
    assert texts == ["<user>hi<assistant>hello"]
    assert said(found) == ["a conversation that the chat template refuses (user first)"]
    assert found.skipped[0].count == 2


def test_u25_parts_empty_and_images(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = TEMPLATE
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": PARTS}]},
        {"messages": [IMAGE]},
        {"messages": []},
        {"messages": None},
        {"messages": [{"role": "user", "content": "half \ud83d"}]},
    ]
    texts, found = read(tmp_path, rows, by=tokenizer)
    assert texts == ["<user>hi</s>", "<user>half \ufffd</s>"]
    assert said(found) == ["a conversation with images or sound", "no text in the row"]
    assert [one.count for one in found.skipped] == [1, 2]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "wizard", "content": "x"}], "train.jsonl:2: no message with role and content"),
        ([{"content": "x"}], "no message with role and content"),
        (["x"], "no message with role and content, or from and value: 'x'"),
        ([{"role": "user", "content": 3}], "no message with role and content"),
        ("just words", "column 'messages' holds a string, not a list of messages"),
        (7, "column 'messages' holds a number, not a list of messages"),
    ],
)
def test_u25_what_is_no_conversation_is_refused(
    tmp_path: Path, messages: Any, message: str
) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path, [{"messages": HELLO}, {"messages": messages}])
    assert message in error.value.message


def test_u25_keys_say_which_column(tmp_path: Path) -> None:
    row = {"text": "plain", "chat": HELLO, "content": "other"}
    assert read(tmp_path, [row])[0] == ["plain"]
    assert read(tmp_path, [row], text_key="content")[0] == ["other"]
    assert read(tmp_path, [row], chat_key="chat")[0] == ["user: hi\n\nassistant: hello"]
    with pytest.raises(DataError, match="no column 'chats'") as error:
        read(tmp_path, [row], chat_key="chats")
    assert error.value.hint == "data.chat_key: chat"
    with pytest.raises(DataError, match="no column 'body'"):
        read(tmp_path, [{"messages": HELLO}], text_key="body")


def test_u25_conversations_in_parquet(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    tokenizer.chat_template = TEMPLATE
    rows = [{"messages": HELLO, "n": 1}, {"messages": [*HELLO, CALL], "n": 2}]
    for split in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    texts = list(load_split(tmp_path, "train", tokenizer=tokenizer))
    assert texts[0] == "<user>hi</s><assistant>hello</s>"
    assert len(texts) == 2
