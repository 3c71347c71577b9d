/**
 * Inbound messages over gRPC: encoded before the round, written directly to HTTP/2 streams, and receipts counted in the
 * received bytes. A gRPC client that builds and parses every message would cost more than what it measures.
 */

import http2 from "node:http2";
import { type LoadResult, Tally } from "./load.ts";
import { atConstantRate } from "./pacing.ts";

/** One gRPC message: a flag byte, a length of four bytes, a `StreamInboundMessagesRequest`. */
export interface EncodedGroup {
  readonly frame: Uint8Array;
  readonly messages: number;
}

const frameHeadBytes = 5;

/** A gRPC message with its flag byte and length in front. */
export function framed(message: Uint8Array): Uint8Array {
  const frame = Buffer.alloc(frameHeadBytes + message.length);
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, frameHeadBytes);
  return frame;
}

export interface StreamRound {
  readonly next: () => EncodedGroup | undefined;
  readonly milliseconds: number;
}

export interface StreamLoadOptions {
  readonly streams: number;
  /** Groups with outstanding receipts, per stream. */
  readonly groupsUnderWay: number;
}

const path = "/phoneproof.v1.InboundMessageService/StreamInboundMessages";
const streamWindowBytes = 1024 * 1024;
const sessionWindowBytes = 4 * 1024 * 1024;

export class StreamLoad {
  readonly #session: http2.ClientHttp2Session;
  readonly #streams: Stream[];
  #delivered = 0;

  private constructor(session: http2.ClientHttp2Session, streams: Stream[]) {
    this.#session = session;
    this.#streams = streams;
  }

  /** `address` is `host:port`. */
  static async open(address: string, token: string, options: StreamLoadOptions): Promise<StreamLoad> {
    const session = http2.connect(`http://${address}`, {
      settings: { initialWindowSize: streamWindowBytes },
    });
    await new Promise((resolve, reject) => {
      session.once("connect", resolve);
      session.once("error", reject);
    });
    session.setLocalWindowSize(sessionWindowBytes);
    const streams = Array.from({ length: options.streams }, () => {
      const call = session.request({
        ":method": "POST",
        ":path": path,
        "content-type": "application/grpc",
        te: "trailers",
        authorization: `Bearer ${token}`,
      });
      return new Stream(call, options.groupsUnderWay);
    });
    return new StreamLoad(session, streams);
  }

  /** Sends until the time is over or nothing is left, and waits for the last receipts. */
  async run(round: StreamRound): Promise<LoadResult> {
    const tally = new Tally();
    const deadline = performance.now() + round.milliseconds;
    await Promise.all(this.#streams.map((stream) => stream.run(round, tally, deadline)));
    return tally.result();
  }

  /** Sends groups at a constant rate, on each stream in turn, and waits for the last receipts. */
  pace(round: StreamRound, perSecond: number): Promise<LoadResult> {
    const tally = new Tally();
    let turn = 0;
    let allSent = false;
    return new Promise((resolve, reject) => {
      const settle = () => {
        if (allSent && this.#streams.every((stream) => stream.isIdle)) resolve(tally.result());
      };
      for (const stream of this.#streams) stream.listen(tally, reject, settle);
      atConstantRate(perSecond, round.milliseconds, (dueAt) => {
        const group = round.next();
        if (group === undefined) throw new Error("there are no more messages");
        this.#streams[turn++ % this.#streams.length]?.send(group, dueAt);
      }).then(() => {
        allSent = true;
        settle();
      }, reject);
    });
  }

  /** Sends one message outside of a round, on the next stream in turn; resolves with its receipt. */
  deliver(frame: Uint8Array): Promise<void> {
    const stream = this.#streams[this.#delivered++ % this.#streams.length] as Stream;
    return stream.deliver(frame);
  }

  close(): void {
    for (const stream of this.#streams) stream.close();
    this.#session.destroy();
  }
}

interface Group {
  readonly sentAt: number;
  readonly messages: number;
  unanswered: number;
}

class Stream {
  readonly #call: http2.ClientHttp2Stream;
  readonly #groupsUnderWay: number;
  readonly #underWay: Group[] = [];
  readonly #awaited: { readonly resolve: () => void; readonly reject: (error: Error) => void }[] = [];
  #partial: Buffer = Buffer.alloc(0);
  #onReceipts: (receipts: number) => void = () => {};
  #onLost: (error: Error) => void = () => {};

  constructor(call: http2.ClientHttp2Stream, groupsUnderWay: number) {
    this.#call = call;
    this.#groupsUnderWay = groupsUnderWay;
    call.on("data", (piece: Buffer) => this.#receive(piece));
    call.on("error", (error) => this.#onLost(error));
    call.on("trailers", (trailers) => {
      this.#onLost(new Error(`the stream ended: ${trailers["grpc-status"]} ${trailers["grpc-message"]}`));
    });
    call.on("close", () => this.#onLost(new Error("the stream was closed by the server")));
  }

  get isIdle(): boolean {
    return this.#underWay.length === 0;
  }

  run({ next }: StreamRound, tally: Tally, deadline: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const fill = () => {
        const now = performance.now();
        while (this.#underWay.length < this.#groupsUnderWay) {
          const group = now < deadline ? next() : undefined;
          if (group === undefined) break;
          this.send(group, now);
        }
        if (this.isIdle) resolve();
      };
      this.listen(tally, reject, fill);
      fill();
    });
  }

  /** Adds each group to the tally when its last receipt arrives. `onResponse` is called after every response. */
  listen(tally: Tally, lost: (error: Error) => void, onResponse: () => void): void {
    this.#onLost = lost;
    this.#onReceipts = (receipts) => {
      const now = performance.now();
      for (let left = receipts; left > 0; ) {
        const group = this.#underWay[0];
        if (group === undefined) {
          lost(new Error("there were more receipts than messages"));
          return;
        }
        const taken = Math.min(left, group.unanswered);
        left -= taken;
        group.unanswered -= taken;
        if (group.unanswered > 0) continue;
        this.#underWay.shift();
        tally.add(now - group.sentAt, group.messages);
      }
      onResponse();
    };
  }

  send({ frame, messages }: EncodedGroup, sentAt: number): void {
    this.#underWay.push({ sentAt, messages, unanswered: messages });
    this.#call.write(frame);
  }

  deliver(frame: Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#call.closed) throw new Error("the stream was closed by the server");
      this.#awaited.push({ resolve, reject });
      this.#onReceipts = (receipts) => {
        for (const { resolve: received } of this.#awaited.splice(0, receipts)) received();
      };
      this.#onLost = (error) => {
        for (const { reject: lost } of this.#awaited.splice(0)) lost(error);
      };
      this.#call.write(frame);
    });
  }

  close(): void {
    this.#onLost = () => {};
    this.#call.close(http2.constants.NGHTTP2_CANCEL);
  }

  #receive(piece: Buffer): void {
    const received = this.#partial.length === 0 ? piece : Buffer.concat([this.#partial, piece]);
    let receipts = 0;
    let position = 0;
    while (received.length - position >= frameHeadBytes) {
      const end = position + frameHeadBytes + received.readUInt32BE(position + 1);
      if (end > received.length) break;
      try {
        receipts += countVerified(received, position + frameHeadBytes, end);
      } catch (error) {
        this.#onLost(error as Error);
        return;
      }
      position = end;
    }
    this.#partial = received.subarray(position);
    if (receipts > 0) this.#onReceipts(receipts);
  }
}

/** Tags of protobuf fields: the field number, followed by three bits of wire type. */
const receiptTag = (1 << 3) | 2;
const messageIdTag = (1 << 3) | 2;
const outcomeTag = 2 << 3;
const verified = 1;

/** Counts the receipts in a `StreamInboundMessagesResponse`; throws if one is not VERIFIED. */
function countVerified(bytes: Buffer, start: number, end: number): number {
  let count = 0;
  for (let position = start; position < end; count++) {
    if (bytes[position] !== receiptTag)
      throw new Error("the response contains something other than receipts");
    const [length, receipt] = varint(bytes, position + 1);
    if (bytes[receipt] !== messageIdTag) throw new Error("a receipt without a message id");
    const [idLength, id] = varint(bytes, receipt + 1);
    const outcome = id + idLength;
    if (bytes[outcome] !== outcomeTag || bytes[outcome + 1] !== verified) {
      const messageId = bytes.toString("utf8", id, outcome);
      throw new Error(`the receipt of ${messageId} has the outcome ${bytes[outcome + 1]}, not VERIFIED`);
    }
    position = receipt + length;
  }
  return count;
}

/** The value and the position after it. Two bytes suffice for every length in a receipt. */
function varint(bytes: Buffer, position: number): [number, number] {
  const low = bytes[position] ?? 0;
  if (low < 128) return [low, position + 1];
  return [(low & 127) | ((bytes[position + 1] ?? 0) << 7), position + 2];
}
