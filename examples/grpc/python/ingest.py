"""Streams SMS to the service, from one JSON object per line on standard input: python3 ingest.py < messages.ndjson"""

import json
import random
import sys
import threading
import time
from collections import deque

import grpc
from phoneproof import connect, enum_name, message, method, told_of, usage

MAX_WAITING = 1_000  # Bounds the memory, and the messages that are sent again after a lost connection.
MAX_IN_REQUEST = 100
LONGEST_LINE = 65_536  # Far more than any SMS needs: a request has up to a hundred messages and at most 8 MiB.
HOPELESS = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
}

# Messages come only from standard input: with a file as argument, the program would silently wait for input.
if len(sys.argv) != 1:
    usage("python3 ingest.py < messages.ndjson")

channel, metadata = connect()
stream = method(channel, "InboundMessageService", "StreamInboundMessages")
Request = message("StreamInboundMessagesRequest")
InboundMessage = message("InboundMessage")

waiting = {}  # Messages without a receipt, by id and in order.
unsent = deque()  # Those of them that the current connection has not sent yet.
ended = False
unreadable = 0
changed = threading.Condition()


def message_of(line):
    """Missing fields are sent empty: the service answers INVALID."""
    if len(line) > LONGEST_LINE:
        raise ValueError("too long")
    fields = {"message_id": "", "from": "", "to": "", "text": "", "carrier": "", **json.loads(line)}
    fields = {name: fields[name] for name in ("message_id", "from", "to", "text", "carrier")}
    if not all(isinstance(value, str) for value in fields.values()):
        raise ValueError("a field is not a string")
    # The receipt for a longer id may contain only its beginning, and could not be matched to its message.
    if len(fields["message_id"]) > 255:
        raise ValueError("message_id is longer than 255 characters")
    # "from" is a Python keyword, so it can only be passed as an argument from a dict.
    return InboundMessage(**fields)


def read():
    """Reads the messages. In production, use your queue, which must keep each message until its receipt has arrived."""
    global ended, unreadable
    for number, line in enumerate(sys.stdin.buffer, 1):
        if not line.strip():
            continue
        try:
            sms = message_of(line)
        except (TypeError, ValueError, RecursionError) as problem:
            # The line is skipped, and not quoted, because it contains a person's phone number.
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
    """gRPC pulls the next request when HTTP/2 flow control has room for it, which is the backpressure."""
    while True:
        with changed:
            changed.wait_for(lambda: connection_over.is_set() or ended or unsent)
            if connection_over.is_set() or not unsent:
                return
            messages = [unsent.popleft() for _ in range(min(len(unsent), MAX_IN_REQUEST))]
        yield Request(messages=messages)


def exchange():
    """Uses one connection until every message has its receipt or the connection breaks."""
    connection_over = threading.Event()
    with changed:
        # Every message without a receipt is sent again: the service recognises by the id what it has accepted.
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
