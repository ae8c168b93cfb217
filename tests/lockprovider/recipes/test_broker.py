"""One process writes for the others: clients with sockets of their own, on one store in memory."""

from __future__ import annotations

import errno
import json
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import fsspec
import pytest
from patience import until
from recipes.queues import PATH, made

from fsspec_cas import InvalidInput, OutcomeUnknown, Store
from fsspec_cas.backends.memory import MemoryBackend
from fsspec_cas.bridge.threads import Later
from fsspec_cas.machine import Worker
from fsspec_cas.testing import Faulty, ManualClock, Pass, Refuse
from lockprovider.queue import Queue, SequenceGap
from lockprovider.recipes.broker import BrokenLink, Broker, Link, Service, prove, receive_frame, send_frame
from lockprovider.recipes.broker_rules import Bundle, offers_of, with_offer
from lockprovider.recipes.queue.operations import Beat, QueueCodec
from lockprovider.recipes.wal.contents import LogManifest
from lockprovider.wal import Fenced, Wal

WHERE = True


@pytest.fixture
def store() -> Store:
    return Store(MemoryBackend(fsspec.filesystem("memory", skip_instance_cache=True)), f"/{uuid.uuid4().hex}")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=[True, "127.0.0.1"], ids=["unix", "tcp"])
def where(request) -> bool | str:
    return request.param


def queues(store: Store, opened: ExitStack, count: int, where: bool | str = WHERE) -> list[Queue]:
    """The first of them is the broker, and the others have put a message each: that gives them a name in the table."""
    made(store).close()
    found = [opened.enter_context(Queue(store, PATH, broker=where)) for _ in range(count)]
    for one in found:
        one.put("first")
    return found


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
def test_broker_listens_at_an_ipv6_address(store, opened) -> None:
    _, client = queues(store, opened, 2, "::1")
    assert client.put("second").n == 3
    assert offer(store)[0].startswith("tcp:::1:")


def test_broker_answers_after_a_timeout_of_its_write() -> None:
    failed: Later[Any] = Later()
    failed.set_exception(TimeoutError())
    broker = Broker("", QueueCodec(), lambda _: failed, ManualClock())
    answers = broker._results(socket.socket(), 1, Bundle((Beat(()),), (False,), lambda: True))
    assert answers == [{"not_here": True}]


@pytest.mark.parametrize("connecting", [False, True])
def test_closed_client_keeps_no_link_for_a_batch_that_still_runs(*, connecting: bool) -> None:
    heard: list[bytes] = []
    client = Broker("127.0.0.1", QueueCodec(), lambda _: Later(), ManualClock())
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as peer:
                if connecting:
                    client.close()
                prove(peer, "key", asks=False)
                heard.append(peer.recv(1))

        if not connecting:
            client.close()
        listening = threading.Thread(target=answer)
        listening.start()
        named = with_offer({}, client._host_name, (f"tcp:127.0.0.1:{listener.getsockname()[1]}", "key"))
        handed = client.hand_over(named, [Beat(())], [False], set())
        listening.join()
    assert handed is not None
    assert (handed.results, handed.sent, heard) == (None, (False,), [b""])


def offer(store: Store, path: str = PATH) -> tuple[str, str]:
    ((_, found),) = offers_of(json.loads(store.read(path).data)["broker"]).items()
    return found


def is_broker(queue: Queue, store: Store) -> bool:
    return queue._writer._broker._own_offer == offer(store)


def test_broker_writes_for_a_client_with_an_unknown_name(store, opened) -> None:
    queues(store, opened, 1)
    way = Faulty(store.backend, {})
    client = opened.enter_context(Queue(Store(way, store.root), PATH, broker=WHERE))
    client.put("by itself: its name is new")
    assert "put" in way.calls
    way.calls.clear()
    client.put("by the broker")
    assert "put" not in way.calls


def test_client_that_cannot_listen_warns_once_and_writes_itself(store, opened, caplog) -> None:
    made(store).close()
    one = opened.enter_context(Queue(store, PATH, broker="192.0.2.1"))  # nobody's address
    for body in ("first", "second"):
        one.put(body)
    assert one.stat().ready == 2
    assert [each.getMessage().partition(": ")[0] for each in caplog.records] == ["no broker at 192.0.2.1"]


@pytest.mark.parametrize("anywhere", ["0.0.0.0", "::"])  # noqa: S104 - is refused
def test_wildcard_address_is_not_announced(store, anywhere) -> None:
    with pytest.raises(InvalidInput, match=r"must be True \(on this host\) or an address"):
        Queue(store, PATH, broker=anywhere)


def test_broker_writes_for_all_and_each_message_is_processed_once(store, opened, where) -> None:
    crowd = queues(store, opened, 4, where)
    assert is_broker(crowd[0], store)
    before = crowd[0].stat().rev
    worked: Counter[int] = Counter()

    def cycle(number: int) -> None:
        queue = crowd[number % 4]
        for _ in range(10):
            queue.put({"from": number}, producer=None)
            with until(queue.claim) as job:
                worked[job.n] += 1

    with ThreadPoolExecutor(16) as pool:
        [*pool.map(cycle, range(16))]
    assert set(worked.values()) == {1}
    assert len(worked) == 160
    stat = crowd[1].stat()
    assert (stat.put, stat.ready, stat.claimed) == (164, 4, 0)
    assert is_broker(crowd[0], store)
    assert stat.rev - before < 480  # cycles of three operations each, which share writes
    assert all(one._writer._broker._link is not None for one in crowd[1:])


def test_another_client_becomes_broker_when_the_broker_is_gone(store, opened, where) -> None:
    crowd = queues(store, opened, 3, where)
    crowd[0].close()
    assert crowd[1].put("a").n == 4
    assert is_broker(crowd[1], store)
    assert crowd[2].put("b").n == 5
    assert crowd[2]._writer._broker._link is not None


def frozen(opened: ExitStack, key: str) -> tuple[Service, threading.Event]:
    """A broker that takes what it is asked, and says nothing."""
    asked = threading.Event()

    def serve(peer: socket.socket) -> None:
        while True:
            receive_frame(peer, None)
            asked.set()

    service = Service(None, key, serve)
    opened.callback(service.close)
    return service, asked


def name_as_broker(store: Store, *offer: str) -> None:
    found = store.read(PATH)
    said = json.loads(found.data)
    place = socket.gethostname()
    said["broker"] = with_offer(said.get("broker"), place, offer)
    store.put_if_match(PATH, json.dumps(said).encode(), found.version)


def test_silent_broker_is_abandoned(store, opened, monkeypatch) -> None:
    monkeypatch.setattr("lockprovider.recipes.broker.SILENCE_S", 0.1)
    (queue,) = queues(store, opened, 1)
    service, asked = frozen(opened, "its key")
    name_as_broker(store, service.address, "its key")
    queue.stat()  # it reads the object
    assert (queue.put("a").n, queue.put("b").n) == (2, 3)
    assert asked.is_set()
    assert is_broker(queue, store)
    assert [letter.body for letter in queue.peek()] == ["first", "a", "b"]


@pytest.mark.parametrize(
    "address", ["unix:/nowhere/s", "tcp:127.0.0.1:1", "tcp:h:" + "9" * 30, "tcp:nonsense", "", "http://x", 7]
)
def test_unreachable_broker_address_does_not_stop_a_put(store, opened, address) -> None:
    (queue,) = queues(store, opened, 1)
    name_as_broker(store, address, "key")
    queue.stat()
    assert queue.put("a").n == 2


def test_peer_without_the_key_is_refused_by_client_and_broker(store, opened, where) -> None:
    crowd = queues(store, opened, 2, where)
    address, key = offer(store)
    with pytest.raises(BrokenLink):
        Link(address, "another")
    service, asked = frozen(opened, "another")  # sits where a broker was, and does not know its key
    name_as_broker(store, service.address, "its key")
    crowd[1].stat()
    assert crowd[1].put("a").n == 3
    assert not asked.is_set()
    Link(address, key).close()


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x02[]",
    b"\x00\x00\x00\x03{]}",
    b"\x00\x00\x00\x10" + b'{"v":1,"nonce":7',
    b"",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_from_strangers_does_no_harm(garbage, store, opened) -> None:
    crowd = queues(store, opened, 2)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(offer(store)[0].removeprefix("unix:"))
        with suppress(ConnectionError):
            stranger.sendall(garbage)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass  # it hangs up
    assert crowd[1].put("a").n == 3
    assert crowd[1]._writer._broker._link is not None


ASKED: list[Any] = [
    {
        "ask": 1,
        "operations": [[["put", [0, 0, 0, 0, "", "x", "json", ""], "~new", 1, "c", 0, 0], False]],
    },  # adds a name
    {"ask": 1, "operations": [[["purge", 3], False]]},
    {"ask": 1, "operations": [[["put", [0, 0, 0, 0, "", "no base64!", "bytes", ""], "p", 1, "c", 0, 0], False]]},
    {"ask": 1, "operations": [[["end", 1, "t", "eat", [], 0, "", True], False]]},
    {"ask": 1, "operations": [["take"]]},
    {"ask": 1, "operations": 7},
    {"operations": []},
    {"ask": "x"},
    {"ask": float("inf")},
    {},
]


@pytest.mark.parametrize("said", ASKED)
def test_garbage_from_a_peer_with_the_key_does_no_harm(said, store, opened) -> None:
    crowd = queues(store, opened, 2)
    before = crowd[0].stat()
    link = Link(*offer(store))
    send_frame(link._socket, said, 5.0)
    try:
        answer = receive_frame(link._socket, 5.0)
        assert answer["results"] == [{"not_here": False}]
    except BrokenLink:
        pass  # it hung up
    assert crowd[0].stat() == before
    assert crowd[1].put("a").n == 3


ANSWERS: list[Any] = [
    {"ask": 1, "results": []},
    {"ask": 2, "results": [{"ok": 7}]},
    {"ask": 1, "results": [{"ok": "seven"}]},
    {"ask": 1, "results": [{"error": "SystemExit", "args": []}]},
    {"ask": 1, "results": [{"error": "ClaimLost", "args": [{}]}]},
    {"ask": 1, "results": [7]},
    {"ask": 1, "results": "x"},
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_malformed_answer_is_no_answer(answer, store, opened) -> None:
    (queue,) = queues(store, opened, 1)

    def serve(peer: socket.socket) -> None:
        receive_frame(peer, None)
        send_frame(peer, answer, 5.0)
        receive_frame(peer, None)

    service = Service(None, "key", serve)
    opened.callback(service.close)
    name_as_broker(store, service.address, "key")
    queue.stat()
    assert queue.put("a").n == 2
    assert [letter.body for letter in queue.peek()] == ["first", "a"]


def test_error_of_each_operation_reaches_its_caller(store, opened) -> None:
    crowd = queues(store, opened, 2)
    crowd[1].put("a", producer="p", seq=2)
    crowd[0].put("b", producer="q", seq=5)
    with pytest.raises(SequenceGap):
        crowd[1].put("b", producer="p", seq=1)
    assert crowd[1].put("a", producer="p", seq=2).again
    job = crowd[1].claim()
    assert job is not None
    job.then(b"bytes")
    job.ack()
    assert [letter.body for letter in crowd[0].peek()][-1] == b"bytes"


def test_client_writes_itself_when_the_store_refuses_its_broker(store, opened) -> None:
    made(store).close()
    clock = ManualClock()
    network = Faulty(store.backend, {"put": [Pass(), *[Refuse()] * 1000]}, world=clock)
    first = opened.enter_context(Queue(Store(network, store.root, world=clock), PATH, broker=True, world=clock))
    second = opened.enter_context(Queue(store, PATH, broker=True))
    first.put("first")
    second.put("second")
    assert second.put("third").n == 3


def test_claim_of_a_disconnected_client_is_not_made(store, opened) -> None:
    crowd = queues(store, opened, 1)
    link = Link(*offer(store))
    broker = crowd[0]
    with broker._batcher._writing:  # its batcher stands still, as a process does that was stopped
        waits = threading.Event()
        submit = broker._writer._broker._submit

        def late(bundle: Any) -> Any:
            answer = submit(bundle)
            waits.set()
            return answer

        broker._writer._broker._submit = late
        send_frame(link._socket, {"ask": 1, "operations": [[["take", "token", "me", 60000], False]]}, 5.0)
        link.close()
    assert waits.wait(60)
    broker.put("second")
    assert broker.stat().claimed == 0


def test_broker_without_free_descriptors_answers_again_once_one_is_free(opened, monkeypatch, caplog) -> None:
    """Other servers end there, or spin (yesodweb/wai 830, httpbeast 27, libuv 690)."""
    monkeypatch.setattr("lockprovider.recipes.broker._AGAIN_S", 0.01)
    answered, failures = threading.Event(), [OSError(errno.EMFILE, "Too many open files")] * 3

    class Scarce(socket.socket):
        def accept(self) -> Any:
            if failures and threading.current_thread().name == "broker":
                raise failures.pop()
            return super().accept()

    monkeypatch.setattr(socket, "socket", Scarce)
    service = Service(None, "key", lambda _: answered.set())
    opened.callback(service.close)
    Link(service.address, "key").close()
    assert answered.wait(60)
    assert failures == []
    assert [record.getMessage().partition(" now")[0] for record in caplog.records] == [
        f"the broker at {service.address} takes no client"
    ]


def test_broker_without_a_free_thread_hangs_up_and_answers_the_next_client(opened, monkeypatch) -> None:
    monkeypatch.setattr("lockprovider.recipes.broker._AGAIN_S", 0.01)
    answered, start, failures = threading.Event(), Worker.start, [RuntimeError("can't start new thread")]

    def scarce(worker: Worker) -> None:
        if failures and worker.name == "broker-peer":
            raise failures.pop()
        start(worker)

    monkeypatch.setattr(Worker, "start", scarce)
    service = Service(None, "key", lambda _: answered.set())
    opened.callback(service.close)
    with pytest.raises(BrokenLink):
        Link(service.address, "key")
    Link(service.address, "key").close()
    assert answered.wait(60)
    until(lambda: not service._peers)


def test_process_without_threads_writes_itself(store, opened, monkeypatch, caplog) -> None:
    made(store).close()
    start = Worker.start

    def scarce(worker: Worker) -> None:
        if worker.name == "broker":
            raise RuntimeError("can't start new thread")
        start(worker)

    monkeypatch.setattr(Worker, "start", scarce)
    assert opened.enter_context(Queue(store, PATH, broker=True)).put("first").n == 1
    assert "this process writes for itself" in caplog.text


def logs(store: Store, opened: ExitStack, count: int, where: bool | str = WHERE) -> list[Wal]:
    crowd = [opened.enter_context(Wal(store, "orders", broker=where)) for _ in range(count)]
    crowd[0]._objects.create(LogManifest(uuid.uuid4().hex, 8, "slots"))
    for one in crowd:
        one.append(b"first")
    return crowd


def test_broker_appends_for_all_and_each_record_exists_once(store, opened, where) -> None:
    crowd = logs(store, opened, 4, where)
    before = crowd[0].end()
    told: Counter[int] = Counter()

    def append(number: int) -> None:
        log = crowd[number % 4]
        out = log.appender(f"p{number}")
        for n in range(1, 11):
            place = out.append(b"%d.%d" % (number, n), seq=n).position
            told[place.offset] += 1
            told[log.append(b"unnamed").position.offset] += 1

    with ThreadPoolExecutor(16) as pool:
        [*pool.map(append, range(16))]
    end = crowd[3].end()
    assert set(told.values()) == {1}
    assert end.offset - before.offset == len(told) == 320
    assert crowd[0].info().producers == {f"p{n}": 10 for n in range(16)}
    assert end.slot - before.slot < 320
    assert sum(one._writer._broker._link is not None for one in crowd) >= 3


def test_another_client_becomes_broker_of_a_log_when_it_is_gone(store, opened) -> None:
    crowd = logs(store, opened, 3)
    out = crowd[1].appender("p")
    assert out.append(b"1", seq=1).position.offset == 3
    crowd[0].close()
    assert [out.append(b"2", seq=2).position.offset, crowd[2].append(b"x").position.offset] == [4, 5]
    assert out.append(b"2", seq=2).again
    other = crowd[2].appender("p")
    other.append(b"3", seq=3)
    with pytest.raises(Fenced):
        out.append(b"3", seq=3)
    with crowd[1].lead() as leader:
        leader.append(b"alone")
        with pytest.raises(Fenced):
            crowd[2].append(b"y")


def test_invalid_interface_names_are_refused(store) -> None:
    for wrong in (7, None, "", b"127.0.0.1"):
        with pytest.raises(InvalidInput, match="broker="):
            Queue(store, PATH, broker=wrong)
    assert isinstance(OutcomeUnknown, type)
