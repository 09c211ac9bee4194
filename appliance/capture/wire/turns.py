"""Messages from the pieces that wires cut them into. Pure.

What an assistant says in a row is one turn, as one sampled answer was; what another role says in one message of
its wire is one message, its texts on lines of their own. Costs what there is to read, however finely it is cut.
"""

from __future__ import annotations

from appliance.types import Message, ToolCall


class Turns:
    """Give it pieces in order, then ask for `messages`."""

    def __init__(self) -> None:
        self._done: list[Message] = []
        self._role = ""
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCall] = []

    def assistant(self, text: str = "", reasoning: str = "", call: ToolCall | None = None) -> None:
        """A piece of an assistant's turn, which goes on until another role speaks."""
        self._open("assistant")
        self._texts.append(text)
        self._thoughts.append(reasoning)
        if call is not None:
            self._calls.append(call)

    def say(self, role: str, text: str) -> None:
        """A text of `role`'s message, which goes on until `close`."""
        self._open(role)
        self._texts.append(text)

    def result(self, text: str, call_id: str) -> None:
        """A tool's result: a message of its own."""
        self.close()
        self._done.append(Message("tool", text, tool_call_id=call_id))

    def close(self) -> None:
        """What was being said has ended."""
        if self._role:
            separator = "" if self._role == "assistant" else "\n"
            content, reasoning = separator.join(self._texts), "".join(self._thoughts)
            self._done.append(Message(self._role, content, reasoning, tuple(self._calls)))
        self._role, self._texts, self._thoughts, self._calls = "", [], [], []

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said."""
        self.close()
        return tuple(self._done)

    def _open(self, role: str) -> None:
        if self._role != role:
            self.close()
            self._role = role
