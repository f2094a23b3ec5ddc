"""Which columns of a row are text, and how: one of text, a conversation, question and answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jinja2 import TemplateError

from fretsaw.errors import DataError, nearest
from fretsaw.train.found import Tally
from fretsaw.train.readers import Row, spoken, whole

TEXT_KEY = "text"
CHAT_KEYS = ("messages", "conversations", "conversation", "dialogue")
QUESTION_KEYS = ("instruction", "question", "query", "prompt")
ANSWER_KEYS = ("output", "response", "answer", "completion")
CONTEXT_KEYS = ("input", "context")
SYSTEM_KEYS = ("system", "system_prompt")
TOOL_KEYS = ("tools", "functions")

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "developer": "system",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""What other data sets call the roles."""

OURS = ("system", "user", "assistant", "tool")

Message = dict[str, Any]


class ChatTokenizer(Protocol):
    """The part of a tokenizer that turns a conversation into text."""

    chat_template: Any

    def apply_chat_template(self, conversation: Any, tools: Any = None, **settings: Any) -> Any:
        """The conversation as the model has learned to read it."""


@dataclass(frozen=True)
class Form:
    """How rows become text.

    Attributes:
        kind: `text`, one column; `chat`, a list of messages; `turns`, a question and its answer;
            `joined`, the two of them as one string.
        main: The text, the messages, or question and answer.
        beside: Columns that belong to it: context, system message, tools.
    """

    kind: Literal["text", "chat", "turns", "joined"]
    main: tuple[str, ...]
    beside: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are read."""
        return (*self.main, *self.beside)

    def __str__(self) -> str:
        """Such as ``column 'text'``."""
        names = ", ".join(map(repr, self.columns))
        return f"column {names}" if len(self.columns) == 1 else f"columns {names}"


@dataclass(frozen=True)
class Columns:
    """What the user said of columns.

    Attributes:
        text_key: Column that holds the text.
        chat_key: Column that holds messages, if that is meant.
    """

    text_key: str = TEXT_KEY
    chat_key: str | None = None

    def form(self, names: Sequence[str], *, where: str) -> Form:
        """The form of rows with these columns.

        Raises:
            DataError: no column holds text.
        """
        beside = tuple(n for n in (*SYSTEM_KEYS, *TOOL_KEYS) if n in names)
        if self.chat_key is not None:
            if self.chat_key not in names:
                raise self._missing(self.chat_key, names, where=where)
            return Form("chat", (self.chat_key,), beside)
        if self.text_key in names:
            return Form("text", (self.text_key,))
        if self.text_key != TEXT_KEY:
            raise self._missing(self.text_key, names, where=where)
        if chat := next((name for name in CHAT_KEYS if name in names), None):
            return Form("chat", (chat,), beside)
        question = next((name for name in QUESTION_KEYS if name in names), None)
        answer = next((name for name in ANSWER_KEYS if name in names), None)
        if question is None or answer is None:
            raise self._missing(TEXT_KEY, names, where=where)
        if (question, answer) == ("prompt", "completion"):
            return Form("joined", (question, answer), beside)
        context = tuple(name for name in CONTEXT_KEYS if name in names)
        return Form("turns", (question, answer), (*context, *beside))

    def _missing(self, key: str, names: Sequence[str], *, where: str) -> DataError:
        guess = nearest(key, names)
        which = "chat_key" if self.chat_key is not None else "text_key"
        return DataError(
            f"{where} has no column {key!r}; its columns: {', '.join(names)}",
            f"data.{which}: {guess}" if guess else f"set data.{which} to the column that holds it",
        )


@dataclass(frozen=True)
class RowReader:
    """Rows of one form as text.

    Attributes:
        form: Of the rows.
        tokenizer: Whose chat template conversations go through; without one they are written
            plainly, ``role: content`` with a blank line between.
        tally: What is counted while reading.
    """

    form: Form
    tokenizer: ChatTokenizer | None
    tally: Tally

    def text(self, row: Row, *, where: str) -> str | None:
        """The text of a row; None if it has none.

        Raises:
            DataError: a column holds something else than it should.
        """
        if missing := [name for name in self.form.main if name not in row]:
            self.tally.count("skipped", f"no column {missing[0]!r} in the row", where=where)
            return None
        text: str | None
        if self.form.kind == "text":
            text = self._string(row, self.form.main[0], where=where)
        elif self.form.kind == "joined" and isinstance(row[self.form.main[0]], str):
            text = "".join(self._string(row, name, where=where) for name in self.form.main)
        else:
            text = self._conversation(row, where=where)
        if not text:
            if text is not None:
                self.tally.count("skipped", "no text in the row", where=where)
            return None
        return whole(text, self.tally, where=where)

    def _string(self, row: Row, name: str, *, where: str) -> str:
        value = row.get(name)
        if value is not None and not isinstance(value, str):
            raise DataError(
                f"{where}: column {name!r} holds {spoken(value)}, not text",
                "set data.text_key to a column of strings, or mend that row",
            )
        return value or ""

    def _conversation(self, row: Row, *, where: str) -> str | None:
        messages = self._messages(row, where=where)
        tools = next((row[name] for name in TOOL_KEYS if row.get(name)), None)
        if isinstance(tools, str):
            tools = _from_json(tools)
        if any(not _is_text(message) for message in messages):
            self.tally.count("skipped", "a conversation with images or sound", where=where)
            return None
        messages = [message | {"content": _joined(message["content"])} for message in messages]
        if not any(m["content"] or m.get("tool_calls") for m in messages):
            return ""
        if self.tokenizer is None or not self.tokenizer.chat_template:
            self.tally.count(
                "noted",
                "a conversation written as role: content, since the tokenizer has no chat template",
                where=where,
            )
            return _plainly(messages, tools)
        return self._by_template(messages, tools, where=where)

    def _by_template(self, messages: list[Message], tools: Any, *, where: str) -> str | None:
        assert self.tokenizer is not None
        try:
            text = str(self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
        except (TemplateError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = str(error).split("\n", 1)[0]
            what = f"a conversation that the chat template refuses ({why})"
            self.tally.count("skipped", what, where=where)
            return None
        system = [m["content"].strip() for m in messages if m["role"] == "system"]
        if any(content not in text for content in system):
            what = "a conversation whose system message the chat template leaves out"
            self.tally.count("noted", what, where=where)
        if any(name not in text for name in _tool_names(tools)):
            what = "a conversation whose tools the chat template leaves out"
            self.tally.count("noted", what, where=where)
        return text

    def _messages(self, row: Row, *, where: str) -> list[Message]:
        if self.form.kind == "turns":
            question, answer = (self._string(row, n, where=where) for n in self.form.main)
            context = [self._string(row, n, where=where) for n in CONTEXT_KEYS if n in row]
            parts = [part for part in (question, *context) if part]
            said = [("user", "\n\n".join(parts)), ("assistant", answer)]
            turns = [{"role": role, "content": text} for role, text in said if answer or parts]
        else:
            turns = [
                _message(item, where=where)
                for name in self.form.main
                for item in self._items(row, name, where=where)
            ]
        system = next((row[name] for name in SYSTEM_KEYS if row.get(name)), None)
        if system and turns and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": str(system)})
        return turns

    def _items(self, row: Row, name: str, *, where: str) -> list[Any]:
        value = row[name]
        value = _from_json(value) if isinstance(value, str) else value
        if value is not None and not isinstance(value, list):
            raise DataError(
                f"{where}: column {name!r} holds {spoken(value)}, not a list of messages",
                "set data.text_key or data.chat_key to the column that is meant",
            )
        return value or []


def _message(item: object, *, where: str) -> Message:
    """A message in the words of chat templates: role and content, and what else it has."""
    data = {k: v for k, v in item.items() if v is not None} if isinstance(item, dict) else {}
    role = data.pop("role", None) or data.pop("from", None)
    content = data.pop("content", None)
    content = data.pop("value", "") if content is None else content
    role = ROLES.get(str(role).lower(), str(role).lower())
    if role not in OURS or not isinstance(content, str | list):
        raise DataError(
            f"{where}: no message with role and content, or from and value: {_short(item)}",
            f"known roles: {', '.join((*OURS, *ROLES))}",
        )
    return {"role": role, "content": content, **data}


def _short(item: object, length: int = 80) -> str:
    text = repr(item)
    return text if len(text) <= length else text[:length] + "…"


def _is_text(message: Message) -> bool:
    content = message["content"]
    return isinstance(content, str) or all(
        isinstance(part, str) or (isinstance(part, Mapping) and isinstance(part.get("text"), str))
        for part in content
    )


def _joined(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else part["text"] for part in content)


def _plainly(messages: Sequence[Message], tools: Any) -> str:
    parts = [f"tools: {json.dumps(tools, ensure_ascii=False)}"] if tools else []
    for message in messages:
        calls = message.get("tool_calls")
        content = [message["content"]] if message["content"] or not calls else []
        content += [json.dumps(calls, ensure_ascii=False)] if calls else []
        parts.append(f"{message['role']}: {' '.join(content)}")
    return "\n\n".join(parts)


def _tool_names(tools: Any) -> list[str]:
    found = []
    for tool in tools if isinstance(tools, list) else []:
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if isinstance(inner, Mapping) and isinstance(inner.get("name"), str):
            found.append(inner["name"])
    return found


def _from_json(text: str) -> Any:
    """A list that some data sets keep as a string of JSON; else the string."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
