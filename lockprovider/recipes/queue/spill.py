"""What waits in segments, and when it comes back. Pure.

1. What waits beyond `IN_OBJECT`, or beyond half of what the object may hold, goes into segments: what would be
   delivered last. A message with a key stays in the object: whether one of its key came before it must be known
   without a read.
2. A segment comes back, whole, when nothing in the object would be delivered before its first message. So the order of
   delivery is as without segments. Messages that wait for their time are in segments of their own, which count once the
   first of them is due.
3. A segment is written before the object names it, and removed after the object names it no more. A name is used once,
   so a segment that a version of the object does not name, while its writer's version is gone, is named by none again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lockprovider.recipes.queue.contents import Contents, Message, Segment

SEGMENT = 1000  # messages, at most
IN_OBJECT = 2000  # messages without a key that are ready in the object


class SegmentWanted(Exception):
    """The messages of this segment have to be read before anything can be said."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def spill(contents: Contents, now_ms: int, stem: str) -> None:
    """Move into segments what is too much for the object; their names are made of `stem`, which nobody else uses."""
    most_bytes = contents.settings.max_bytes // 2
    if len(contents.ready) <= IN_OBJECT and contents.loose <= most_bytes:
        return
    loose = sorted((one for one in contents.ready if not one.key), key=lambda one: (_due_ms(one, now_ms), one.order))
    gone: set[int] = set()
    while len(loose) > 1 and (len(loose) > IN_OBJECT or contents.loose > most_bytes):
        segment = _cut(loose, now_ms, stem, most_bytes // 2)
        gone.update(one.n for one in segment.messages or ())
        contents.segments.append(segment)
        contents.size += len(segment.text) - segment.size
        contents.loose -= segment.size
        contents.changed = True
    contents.ready = [one for one in contents.ready if one.n not in gone]
    contents.segments.sort(key=lambda one: one.first)


def promote(contents: Contents, segment: Segment) -> None:
    """Its messages are in the object, and it is named no more.

    Raises:
        SegmentWanted: it was not read.
    """
    if segment.messages is None:
        raise SegmentWanted(segment.name)
    contents.segments.remove(segment)
    contents.size += segment.size - len(segment.text)
    contents.loose += segment.size
    contents.ready = sorted((*contents.ready, *segment.messages), key=lambda one: one.order)
    contents.changed = True


def with_messages(contents: Contents, found: Mapping[str, tuple[Message, ...]]) -> Contents:
    """The same contents (not a copy), whose segments have these messages, and no others."""
    contents.segments = [
        one if one.messages is found.get(one.name) else replace(one, messages=found.get(one.name))
        for one in contents.segments
    ]
    return contents


def has_room(contents: Contents, segment: Segment) -> bool:
    """Whether what cannot wait in segments leaves room for it."""
    most_bytes = contents.settings.max_bytes
    return contents.size - contents.loose + max(most_bytes // 4, segment.size) <= most_bytes


def next_segment(contents: Contents, now_ms: int) -> Segment | None:
    """The one whose first message comes first, of those that have one that may be delivered."""
    return next((one for one in contents.segments if one.due_ms <= now_ms), None)


def _cut(loose: list[Message], now_ms: int, stem: str, most_bytes: int) -> Segment:
    """From the end of what is left, which keeps one at least."""
    waits = _due_ms(loose[-1], now_ms) > 0
    taken: list[Message] = []
    size = 0
    while len(loose) > 1 and len(taken) < SEGMENT and (not taken or size + len(loose[-1].text) <= most_bytes):
        if (_due_ms(loose[-1], now_ms) > 0) is not waits:
            break
        taken.append(loose.pop())
        size += len(taken[-1].text)
    taken.reverse()
    first = min(one.order for one in taken)
    due_ms = min(_due_ms(one, now_ms) for one in taken)
    name = f"{min(one.n for one in taken)}.{stem}"
    return Segment(name, len(taken), size, first, due_ms, tuple(taken)).told()


def _due_ms(message: Message, now_ms: int) -> int:
    return message.not_before_ms if message.not_before_ms > now_ms else 0
