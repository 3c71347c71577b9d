"""Streams SMS in, a JSON message a line on standard input: python3 ingest.py < messages.ndjson"""

import json
import random
import sys
import threading
import time
from collections import deque

import grpc
from phoneproof import connect, enum_name, message, method, told_of, usage

MAX_WAITING = 1_000  # Bounds the memory, and what is sent again after a cut.
MAX_IN_REQUEST = 100
LONGEST_LINE = 65_536  # Far beyond any SMS: a hundred of them are one request, which may have 8 MiB.
HOPELESS = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
}

# They come on standard input alone: one that waits for them there would not say so.
if len(sys.argv) != 1:
    usage("python3 ingest.py < messages.ndjson")

channel, metadata = connect()
stream = method(channel, "InboundMessageService", "StreamInboundMessages")
Request = message("StreamInboundMessagesRequest")
InboundMessage = message("InboundMessage")

waiting = {}  # Messages without a receipt by their id, in their order.
unsent = deque()  # Those of them that the present connection has not sent.
ended = False
unreadable = 0
changed = threading.Condition()


def message_of(line):
    """What is missing is sent empty: the service answers INVALID."""
    if len(line) > LONGEST_LINE:
        raise ValueError("too long")
    fields = {"message_id": "", "from": "", "to": "", "text": "", "carrier": "", **json.loads(line)}
    fields = {name: fields[name] for name in ("message_id", "from", "to", "text", "carrier")}
    if not all(isinstance(value, str) for value in fields.values()):
        raise ValueError("a field is no text")
    # The receipt of a longer one has its beginning alone.
    if len(fields["message_id"]) > 255:
        raise ValueError("a message_id of more than 255 characters")
    # "from" is a word of Python's own: as a keyword argument it has to come out of a dict.
    return InboundMessage(**fields)


def read():
    """In production: your queue, which keeps a message until its receipt has come."""
    global ended, unreadable
    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            sms = message_of(line)
        except (TypeError, ValueError, RecursionError) as problem:
            # Those after it are read on. The line itself holds a person's number.
            print(f"line {number} was not sent: {problem}", file=sys.stderr)
            unreadable += 1
            continue
        with changed:
            changed.wait_for(lambda: len(waiting) < MAX_WAITING)
            waiting[sms.message_id] = sms
            unsent.append(sms)
            changed.notify_all()
    with changed:
        ended = True
        changed.notify_all()


def requests(connection_over):
    """The library asks for the next request when HTTP/2 has room for it: that is the flow control."""
    while True:
        with changed:
            changed.wait_for(lambda: connection_over.is_set() or ended or unsent)
            if connection_over.is_set() or not unsent:
                return
            messages = [unsent.popleft() for _ in range(min(len(unsent), MAX_IN_REQUEST))]
        yield Request(messages=messages)


def exchange():
    """One connection, until everything has its receipt or it breaks."""
    connection_over = threading.Event()
    with changed:
        # What has no receipt is sent again: the service knows by the id what it has taken.
        unsent.clear()
        unsent.extend(waiting.values())
    try:
        for response in stream(requests(connection_over), metadata=metadata):
            for receipt in response.receipts:
                print(receipt.message_id, enum_name("InboundMessageOutcome", receipt.outcome), flush=True)
                with changed:
                    waiting.pop(receipt.message_id, None)
                    changed.notify_all()
    finally:
        with changed:
            connection_over.set()
            changed.notify_all()


threading.Thread(target=read, daemon=True).start()
attempt = 0
while not ended or waiting:
    try:
        exchange()
    except grpc.RpcError as error:
        if error.code() in HOPELESS:
            sys.exit(told_of(error))
        print(f"connecting again: {told_of(error)}", file=sys.stderr)
    if not ended or waiting:
        time.sleep(min(1, 0.1 * 2 ** min(attempt, 10)) * random.uniform(0.5, 1))
        attempt += 1
sys.exit(1 if unreadable else 0)
