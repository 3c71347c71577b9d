/** Far more streams than a test opens over connections; those are in open-streams.test.ts. */

import { EventEmitter } from "node:events";
import http2, { type ServerHttp2Stream } from "node:http2";
import { Code } from "@connectrpc/connect";
import { expect, test, vi } from "vitest";
import { limitUnauthenticatedStreams } from "../../src/rpc/unauthenticated-streams.ts";

const address = "192.0.2.1";

/** `takes`: whether its client takes a refusal, so that it closes. */
function newStream(destroy = vi.fn(), takes = true): ServerHttp2Stream {
  const stream = Object.assign(new EventEmitter(), {
    session: { destroy, setLocalWindowSize() {} },
    closed: false,
    destroyed: false,
    respond() {},
    close() {
      stream.closed = true;
      if (takes) stream.emit("close");
    },
  });
  return stream as unknown as ServerHttp2Stream;
}

test.for([
  { name: "on connections of their own", isKnown: false },
  { name: "on a connection that has presented a valid one", isKnown: true },
])("any number of invalid credentials, one after the other, leaves room for the next: $name", ({
  isKnown,
}) => {
  const streams = limitUnauthenticatedStreams(() => {});
  const first = newStream();
  if (isKnown) streams.admit(first);
  const { session } = first;
  for (let opened = 0; opened < 5_001; opened++) {
    const stream = Object.assign(newStream(), isKnown && { session });
    expect(streams.open(stream, address, true)).toBe(true);
    streams.answered(stream);
    expect(stream.closed).toBe(false);
    stream.close();
  }
});

test("an invalid credential for which no place is left among the unauthenticated ends its stream", () => {
  const noteRefused = vi.fn();
  const streams = limitUnauthenticatedStreams(noteRefused);
  for (let opened = 0; opened < 500; opened++) streams.open(newStream(), address, false);
  const stream = newStream();
  streams.open(stream, address, true);
  streams.answered(stream);
  expect(stream.closed).toBe(true);
  expect(noteRefused.mock.calls).toEqual([["unauthenticated", "each"]]);
});

test("calls on a connection with a valid credential are not counted while theirs is looked up", () => {
  const streams = limitUnauthenticatedStreams(() => {});
  const first = newStream();
  streams.open(first, address, true);
  streams.admit(first);
  const { session } = first;
  const onIt = () => Object.assign(newStream(), { session });
  for (let opened = 0; opened < 5_001; opened++) expect(streams.open(onIt(), address, true)).toBe(true);
  expect(streams.open(newStream(), address, true)).toBe(true);
});

test("of the streams whose credential is looked up, one network has at most 2,500 and all have at most 5,000", () => {
  const noteRefused = vi.fn();
  const streams = limitUnauthenticatedStreams(noteRefused);
  const open = (from: string) => {
    const stream = Object.assign(newStream(), { respond: vi.fn() });
    return { stream, isOpen: streams.open(stream, from, true) };
  };
  const fill = (from: string) => Array.from({ length: 2_500 }, () => open(from));
  const refusal = [expect.objectContaining({ "grpc-status": String(Code.Unavailable) }), { endStream: true }];
  const expectRefusal = (from: string, limit: string) => {
    const { stream, isOpen } = open(from);
    expect(isOpen).toBe(false);
    expect(stream.respond.mock.calls).toEqual([refusal]);
    expect(stream.closed).toBe(true);
    expect(noteRefused.mock.calls).toEqual([["authenticating", limit]]);
    noteRefused.mockClear();
  };

  const [first, second, ...others] = fill(address);
  expect(others.every(({ isOpen }) => isOpen)).toBe(true);
  expectRefusal(address, "each");
  const further = fill("198.51.100.1");
  expect(further.every(({ isOpen }) => isOpen)).toBe(true);
  expectRefusal("203.0.113.1", "in_all");
  // Those without a credential have places of their own.
  expect(streams.open(newStream(), "203.0.113.1", false)).toBe(true);

  // A place is free once the credential is valid, or the stream has ended.
  if (first) streams.admit(first.stream);
  expect(open("203.0.113.1").isOpen).toBe(true);
  expectRefusal("203.0.113.1", "in_all");
  second?.stream.close();
  expect(open(address).isOpen).toBe(true);
});

test("a stream that is over before it is looked at takes no place", () => {
  const streams = limitUnauthenticatedStreams(() => {});
  for (let opened = 0; opened < 500; opened++) {
    expect(streams.open(Object.assign(newStream(), { closed: true }), address, false)).toBe(false);
  }
  expect(streams.open(newStream(), address, false)).toBe(true);
});

test("connections are cut only while more than 10,000 refusals are not taken", () => {
  const streams = limitUnauthenticatedStreams(() => {});
  const destroy = vi.fn();
  for (let opened = 0; opened < 500; opened++) streams.open(newStream(), address, false);
  const refuse = (count: number, takes: boolean) => {
    for (let refused = 0; refused < count; refused++)
      expect(streams.open(newStream(destroy, takes), address, false)).toBe(false);
  };
  refuse(10_001, true);
  refuse(10_000, false);
  expect(destroy).not.toHaveBeenCalled();
  refuse(1, false);
  // Without an error, Node would ignore the code.
  const { NGHTTP2_ENHANCE_YOUR_CALM: calm } = http2.constants;
  expect(destroy.mock.calls).toEqual([[expect.any(Error), calm]]);
});
